#!/usr/bin/env node
// Put jobs into a bucket with a plain LPUSH, and say what became of them: producer.mjs BUCKET JOB...
import { createClient } from 'redis';

const [bucket, ...jobs] = process.argv.slice(2);
if (jobs.length === 0) {
  console.error('usage: producer.mjs BUCKET JOB...');
  process.exit(2);
}

const queue = `drip:queue:${bucket}`;
const redis = createClient({
  url: process.env.REDIS_URL ?? 'redis://127.0.0.1:7379',
  socket: { reconnectStrategy: false }, // no Redis is an error now, not a push at some later time
});
await redis.connect();

// Asked before the push, so that a Redis without dripd is refused with nothing pushed.
const [, , capacity] = await redis.fCallRo('drip_peek', { keys: [queue] });
const length = await redis.lPush(queue, jobs); // strings or Buffers
const rejected = Math.min(jobs.length, Math.max(0, length - capacity)); // the newest of this push

console.log(`accepted ${jobs.length - rejected} rejected ${rejected}`);
process.exitCode = rejected ? 75 : 0; // 75: EX_TEMPFAIL, try again later
await redis.close();
