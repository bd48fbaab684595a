# frozen_string_literal: true

# The adapter of dripd.rb for clients/conformance/run.py: commands on standard input, what came of them on standard output.

require 'base64'
require 'json'
require 'set'
require_relative 'dripd'

$stdout.sync = true
drip = Dripd::Drip.new(url: ENV.fetch('REDIS_URL'))
routes = Queue.new
seen = Set.new
trap('TERM') { exit!(0) } # while it does not work

def tell(said) = puts(JSON.generate(said))

def answer(drip, command)
  bucket, options = command.fetch('bucket'), command.fetch('options', {})
  receipt = if command['op'] == 'push'
              drip.push(bucket, *command['jobs'].map { |job| Base64.decode64(job) })
            else
              headers = options.fetch('headers', {}).merge(options.slice('traceparent'))
              rest = options.except('headers', 'traceparent').transform_keys { |key| key.delete_suffix('_ms').to_sym }
              drip.submit(bucket, Base64.decode64(command['job']), headers: headers, **rest)
            end
  tell(receipt: receipt.to_a)
rescue Dripd::Refused => e
  tell(refused: e.code)
rescue Dripd::Unknown
  tell(unknown: true)
end

Thread.new do
  $stdin.each_line do |line|
    command = JSON.parse(line)
    command['op'] == 'work' ? routes << command['route'] : answer(drip, command)
  end
end

drip.work(route: routes.pop) do |job|
  tell(job: Base64.strict_encode64(job.body), bucket: job.bucket, attempt: job.attempt, id: job.id, traceparent: job.headers['traceparent'])
  word, rest = job.body.split(' ', 2)
  is_first = seen.add?(job.id)
  case word
  when 'fail' then raise rest
  when 'dead' then raise Dripd::Dead, rest
  when 'sleep' then sleep(rest.to_i / 1000.0)
  when 'limits' then job.limits('X-RateLimit-Remaining' => rest, 'X-RateLimit-Reset' => '60')
  when 'retry' then raise Dripd::RetryIn, rest.to_i if is_first
  when 'refused'
    job.limits('Retry-After' => rest)
    raise Dripd::Throttled if is_first
  when 'throttle'
    ms, budget = rest.split(' ', 2)
    raise Dripd::Throttled.new(ms.to_i, budget: budget) if is_first
  end
end
