# frozen_string_literal: true

# Push jobs into the buckets of dripd, and work on them, with the `redis` gem alone:
#
#     require_relative 'dripd'
#     drip = Dripd::Drip.new(url: 'redis://127.0.0.1:7379')
#     receipt = drip.push('sms:alice', 'hello')         # receipt.accepted is 1, or 0 where the bucket is full
#     drip.work { |job| puts "#{job.bucket} #{job.body}" } # until TERM
#
# All of it is calls of functions in Redis: docs/workers.md. It speaks to one Redis without partitions.

require 'digest'
require 'redis'
require 'socket'

module Dripd
  # A function refused the call, and nothing was changed. `code` is the first word: BADARG, TOOLARGE, WRONGTYPE and so on.
  class Refused < StandardError
    attr_reader :code

    def initialize(why)
      super(why.message)
      @code = message[/\A[A-Z]+/]
    end
  end

  # The connection was lost during a push: it may have happened. It is never repeated for you.
  class Unknown < StandardError; end

  # Your work raises one of these; anything else that it raises means that the job failed.
  class Dead < StandardError; end # trying it again is of no use

  # It failed, and is to be tried again in so many milliseconds instead of after its back-off.
  class RetryIn < StandardError
    attr_reader :ms

    def initialize(milliseconds, reason = 'failed')
      super(reason)
      @ms = milliseconds
    end
  end

  # The other side said that it is too fast (429): the bucket slows down, or the budget that is named. Without a time it is
  # for as long as the headers said (Job#limits).
  class Throttled < StandardError
    attr_reader :ms, :budget

    def initialize(milliseconds = nil, budget: nil, reason: 'throttled')
      super(reason)
      @ms = milliseconds
      @budget = budget
    end
  end

  # What became of a push: of its jobs the first `accepted` went in.
  Receipt = Struct.new(:accepted, :depth, :capacity, :retry_after_ms, :eta_ms)
  Submitted = Struct.new(*Receipt.members, :verdict, :id, :expected_ms, :by)

  # A job as a worker gets it. `id` is the same in every try, and no other job's. `lost` becomes true when the lease was
  # lost: stop then, somebody else may have it.
  Job = Struct.new(:bucket, :body, :attempt, :id, :headers, :lost, :told, :wait_ms, keyword_init: true) do
    # Tell dripd what an answer of an API says of its limits. Two usual forms are read here, in seconds: others are in
    # clients/limit-headers.json.
    def limits(answer)
      named = answer.to_h { |name, value| [name.downcase, Integer(value, exception: false)] }
      left, reset, self.wait_ms = named.values_at('x-ratelimit-remaining', 'x-ratelimit-reset', 'retry-after')
      self.wait_ms &&= wait_ms * 1000
      self.told = left && reset ? ['REMAINING', left, 'RESET', reset * 1000] : []
    end
  end

  # Buckets of one dripd, under one prefix.
  class Drip
    BLOCK_MS = 2000
    GRACE_S = 4 # how long the job in hand may go on after a stop

    def initialize(url: 'redis://127.0.0.1:7379', prefix: 'drip')
      @prefix = prefix
      # A push whose outcome is not known is not repeated; what a worker says may be.
      @once = Redis.new(url: url, reconnect_attempts: 0)
      @again = Redis.new(url: url, reconnect_attempts: 20, reconnect_delay: 0.05, reconnect_delay_max: 1)
    end

    # Push 1 to 1,000 jobs; what does not fit is left out. A full bucket is no error: look at `accepted`.
    def push(bucket, *jobs)
      Receipt.new(*once('drip_push', bucket, *jobs))
    end

    # Push one job with options: id, delay (ms), at (ms), ttl (ms), cost, and headers.
    def submit(bucket, job, headers: {}, **options)
      args = options.compact.flat_map { |name, value| [name.to_s.upcase, value] }
      args += headers.flat_map { |name, value| ['HEADER', name, value] }
      Submitted.new(*once('drip_submit', bucket, job, *args))
    end

    # Take jobs of a route and yield each, one at a time, until TERM or INT. For more at a time start more workers.
    def work(route: 'default', name: "#{Socket.gethostname}-#{Process.pid}")
      @wakes, @waker = IO.pipe # a signal, and the end of a job, wake who waits for the job in hand
      %w[TERM INT].each { |signal| trap(signal) { stop } }
      stream = [@prefix, 'ready', *(route unless route == 'default')].join(':')
      @again.call('FCALL', 'drip__route', 1, stream, '')
      until @stops
        taken = @again.xreadgroup('workers', name, stream, '>', count: 1, block: BLOCK_MS)
        taken.fetch(stream, []).each { |entry, fields| one(stream, name, entry, fields) { |job| yield job } }
      end
    end

    # End `work`: within 2 s where it waits, else after the job in hand, or after 4 s, when that is given back.
    def stop
      @stops ||= now
      @waker.write_nonblock('.')
    end

    private

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def once(function, bucket, *args)
      @once.call('FCALL', function, 1, "#{@prefix}:queue:#{bucket}", *args)
    rescue Redis::CommandError => e
      raise Refused, e
    rescue Redis::BaseConnectionError => e
      raise Unknown, "cannot tell whether #{function} of #{bucket} happened: #{e.message}"
    end

    # One job: it runs in a thread of its own, while this one renews its lease; then say how it ended.
    def one(stream, name, entry, fields, &work)
      job = job_of(entry, fields)
      thread = Thread.new { ended(job, &work) }
      renew_s = Integer(fields['lease_ms']) / 3000.0
      until thread.join(0)
        left_s = @stops ? @stops + GRACE_S - now : renew_s
        return fail_with(stream, entry, 'worker stopped', 'RETRY_IN', 0, 'KEEP') if left_s <= 0
        next @wakes.read_nonblock(100) if @wakes.wait_readable([renew_s, left_s].min)

        job.lost = @again.call('XCLAIM', stream, 'workers', name, 0, entry, 'JUSTID').empty?
      end
      thread.value.call(stream, entry)
    rescue KeyError, ArgumentError, TypeError => e # an entry that is no job: dripd buries it
      fail_with(stream, entry, "no job: #{e.message}")
    end

    # Do the work. Replies what is to be said of it then.
    def ended(job)
      yield job
      ->(stream, entry) { @again.call('FCALL', 'drip_ack', 1, stream, entry, *job.told) }
    rescue StandardError => e
      how = case e
            when Dead then ['DEAD']
            when RetryIn then ['RETRY_IN', e.ms]
            when Throttled then throttled(e, job)
            else []
            end
      ->(stream, entry) { fail_with(stream, entry, e.message, *how, *job.told) }
    ensure
      @waker.write_nonblock('.')
    end

    def throttled(why, job)
      wait_ms = why.ms || job.wait_ms
      ['THROTTLED', *(['RETRY_AFTER', wait_ms] if wait_ms), *(['IN', why.budget] if why.budget)]
    end

    def fail_with(stream, entry, reason, *how)
      @again.call('FCALL', 'drip_fail', 1, stream, entry, *how, 'REASON', reason)
    end

    def job_of(entry, fields)
      bucket = fields.fetch('bucket')
      headers = fields.filter_map { |key, value| [key.delete_prefix('h:'), value] if key.start_with?('h:') }.to_h
      id = "#{fields.fetch('id', entry)}-#{Digest::SHA256.hexdigest(bucket)[0, 16]}"
      Job.new(bucket: bucket, body: fields.fetch('job').b, attempt: Integer(fields.fetch('attempt')), id: id,
              headers: headers, lost: false, told: [], wait_ms: nil)
    end
  end
end
