// BullMQ: one Queue and one Worker a bucket, each worker with a limiter.

import { Record, load, payload, redis, work } from './common.mjs'

const { buckets, intervalUs, jobs, seconds } = work()
const { Queue, Worker, version } = await load('bullmq')
const { Redis } = await load('ioredis')
const connection = await redis(Redis)

// One job an interval. The limiter counts in whole milliseconds, each of its waits may end late, and a wait that is down to
// its last millisecond now and then becomes one of 100 ms. So an interval far below 10 ms is set as some jobs in about 10 ms,
// which is nearer to the work in its rate and in its gaps.
const max = Math.max(1, Math.round(10_000 / intervalUs))
const limiter = { max, duration: Math.max(1, Math.round((max * intervalUs) / 1000)) }
const record = new Record({ total: buckets * jobs })
const name = bucket => `bucket-${bucket}`

// Queues need no connection of their own; finished jobs are removed, as the documentation advises.
const queues = Array.from({ length: buckets }, (_, bucket) => {
  return new Queue(name(bucket), { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } })
})
const began = performance.now()
await Promise.all(
  queues.map(async queue => {
    for (let from = 0; from < jobs; from += 1000) {
      const length = Math.min(1000, jobs - from)
      await queue.addBulk(Array.from({ length }, (_, i) => ({ name: 'job', data: payload(from + i) })))
    }
  })
)
const queuedUs = (performance.now() - began) * 1000

// Workers share the connection for their commands; BullMQ opens another for each one's blocking wait. All are ready before
// the first one runs, one job at a time, which is what keeps a bucket's order.
const workers = Array.from({ length: buckets }, (_, bucket) => {
  const handler = async job => record.note(bucket, job.data)
  const worker = new Worker(name(bucket), handler, { connection, concurrency: 1, limiter, autorun: false })
  return worker.on('error', error => console.error(error.message))
})
await Promise.all(workers.map(worker => worker.waitUntilReady()))
for (const worker of workers) worker.run()
await record.end(seconds)

const exact = limiter.duration * 1000 === intervalUs * limiter.max
const inexact = exact ? '' : ', the nearest it can express'
const note = `one queue and one worker a bucket, limiter max ${limiter.max} duration ${limiter.duration} ms${inexact}`
await record.print({ peer: 'bullmq', version, note }, queuedUs)
await connection.flushall()
process.exit(0) // takes the connections along: nothing of the workers is worth a slow close
