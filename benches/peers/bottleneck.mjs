// Bottleneck: a Group with one limiter a bucket, its state in memory (--mode local) or in Redis (--mode redis).

import { Record, die, load, payload, redis, work } from './common.mjs'

const { buckets, intervalUs, jobs, seconds, mode } = work(['local', 'redis'])
const { default: Bottleneck, version } = await load('bottleneck')
const total = buckets * jobs
const record = new Record({ total })

// A reservoir of 0 lets jobs queue and none start. In Redis minTime is whole milliseconds; in memory it need not be. The
// group's limiters share one pair of connections by themselves.
const interval = intervalUs / 1000
const minTime = mode === 'local' ? interval : Math.max(1, Math.round(interval))
const options = { minTime, maxConcurrent: null, reservoir: 0 }
let connection
if (mode === 'redis') {
  const { Redis } = await load('ioredis')
  connection = await redis(Redis)
  const { host, port, username, password, db } = connection.options
  Object.assign(options, { datastore: 'ioredis', Redis, clientOptions: { host, port, username, password, db } })
}
const group = new Bottleneck.Group(options)
group.on('error', error => die(error.message))
const limiters = Array.from({ length: buckets }, (_, bucket) => group.key(String(bucket)))
await Promise.all(limiters.map(limiter => limiter.ready()))

const began = performance.now()
await new Promise(resolve => {
  let queued = 0
  const handler = (bucket, job) => record.note(bucket, job)
  for (const limiter of limiters) {
    limiter.on('error', error => die(error.message))
    limiter.on('queued', () => ++queued === total && resolve())
  }
  for (let place = 0; place < jobs; place++) {
    const job = payload(place)
    limiters.forEach((limiter, bucket) => limiter.schedule(handler, bucket, job))
  }
})
const queuedUs = (performance.now() - began) * 1000
for (const limiter of limiters) limiter.removeAllListeners('queued')

for (const limiter of limiters) limiter.updateSettings({ reservoir: null })
await record.end(seconds)

const inexact = minTime === interval ? '' : ', the nearest it can express'
const note = `a group keyed by bucket, ${mode} datastore, minTime ${minTime} ms${inexact}`
await record.print({ peer: 'bottleneck', version, note }, queuedUs)
await connection?.flushall()
process.exit(0)
