// The adapter of this client for ../conformance/run.py.
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Dead, Drip, Refused, RetryIn, Throttled, Unknown } from './index.js';

const drip = new Drip(process.env.REDIS_URL);
const seen = new Set();
const tell = (said) => process.stdout.write(`${JSON.stringify(said)}\n`);
const idle = () => process.exit(0);
process.once('SIGTERM', idle); // while it does not work

async function run(job) {
  const { body, bucket, attempt, id, traceparent } = job;
  tell({ job: body.toString('base64'), bucket, attempt, id, traceparent: traceparent ?? null });
  const [word, ...rest] = String(body).split(' ');
  const isFirst = !seen.has(id);
  seen.add(id);
  if (word === 'fail') throw new Error(rest.join(' '));
  if (word === 'dead') throw new Dead(rest.join(' '));
  if (word === 'limits') job.limits({ 'X-RateLimit-Remaining': rest[0], 'X-RateLimit-Reset': '60' });
  if (word === 'refused' && isFirst) {
    job.limits({ 'Retry-After': rest[0] });
    throw new Throttled();
  }
  if (word === 'sleep') await sleep(Number(rest[0]), undefined, { ref: false });
  if (word === 'retry' && isFirst) throw new RetryIn(Number(rest[0]));
  if (word === 'throttle' && isFirst) throw new Throttled(Number(rest[0]), rest[1]);
}

async function answer(op) {
  const { id, delay_ms: delayMs, at_ms: atMs, ttl_ms: ttlMs, cost, headers, traceparent } = op.options ?? {};
  const bytes = (text) => Buffer.from(text, 'base64');
  try {
    const r = op.op === 'push' ? await drip.push(op.bucket, ...op.jobs.map(bytes))
      : await drip.submit(op.bucket, bytes(op.job), { id, delayMs, atMs, ttlMs, cost, headers, traceparent });
    const five = [r.accepted, r.depth, r.capacity, r.retryAfterMs, r.etaMs];
    tell({ receipt: op.op === 'push' ? five : [...five, r.verdict, r.id, r.expectedMs, r.by] });
  } catch (why) {
    tell(why instanceof Refused ? { refused: why.code } : { unknown: why instanceof Unknown });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const op = JSON.parse(line);
  if (op.op !== 'work') await answer(op);
  else {
    process.off('SIGTERM', idle);
    drip.work(run, { route: op.route }).then(() => process.exit(0));
  }
}
