#!/usr/bin/env node
// Take jobs as they drip out of their buckets, run each, acknowledge it: worker.mjs [NAME]
import { hostname } from 'node:os';
import { createClient, RESP_TYPES } from 'redis';

// Your work goes here, in Buffers. Throw, and the job comes again later, through its bucket.
// A job may come twice: `identity` is the same on every attempt, remember it to do the work once.
async function run(bucket, job, identity) {
  process.stdout.write(Buffer.concat([bucket, Buffer.from(' '), job, Buffer.from('\n')]));
}

const name = process.argv[2] ?? hostname();
const limit = Number(process.env.MAX_JOBS ?? Infinity);
let taken = 0;
let stopping = false; // the job in hand is finished first; an idle wait ends within 2 s
process.once('SIGTERM', () => (stopping = true));

const redis = createClient({
  url: process.env.REDIS_URL ?? 'redis://127.0.0.1:7379',
  RESP: 2, // the loop reads replies of this form: with RESP 3 some versions of the client reply another one
  socket: { reconnectStrategy: false }, // a lost Redis ends the worker; what started it starts it again
}).withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }); // a job is bytes, not always UTF-8
await redis.connect();

while (!stopping && taken < limit) {
  const reply = await redis.xReadGroup('workers', name, { key: 'drip:ready', id: '>' }, { COUNT: 1, BLOCK: 2000 });
  for (const { id: entry, message: fields } of reply?.[0].messages ?? []) {
    taken += 1;
    try {
      await run(fields.bucket, fields.job, fields.id ?? entry);
    } catch (why) {
      await redis.fCall('drip_fail', { keys: ['drip:ready'], arguments: [entry, 'REASON', String(why)] });
      continue;
    }
    await redis.xAck('drip:ready', 'workers', entry);
  }
}
await redis.close();
