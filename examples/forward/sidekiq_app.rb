# frozen_string_literal: true

# Sidekiq behind a bucket.
#
# A middleware of the client puts a job that names a bucket there instead of into its queue. dripd moves it on into the queue
# `default`, and a worker finds it there as ever. A retry of Sidekiq's passes the same middleware, so it is paced too.
#
# producer   ruby sidekiq_app.rb sidekiq:acme 100
# worker     sidekiq -r ./sidekiq_app.rb

require 'sidekiq'

class ThroughBucket
  def call(_job_class, job, _queue, pool)
    bucket = job['bucket']
    return yield unless bucket

    body = Sidekiq.dump_json(job.merge('enqueued_at' => Time.now.to_f))
    pool.with { |redis| redis.lpush("drip:queue:#{bucket}", body) }
    false # it is not pushed a second time
  end
end

class Send
  include Sidekiq::Worker

  def perform(number)
    puts "sent #{number}"
    $stdout.flush
  end
end

address = { url: ENV.fetch('REDIS_URL', 'redis://127.0.0.1:7379') }
[:configure_client, :configure_server].each do |side|
  Sidekiq.public_send(side) do |config|
    config.redis = address
    config.client_middleware { |chain| chain.add ThroughBucket }
  end
end

if $PROGRAM_NAME == __FILE__
  bucket, count = ARGV
  Integer(count).times { |number| Send.set('bucket' => bucket).perform_async(number) }
end
