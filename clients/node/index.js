// Push jobs into the buckets of dripd, and work on them. index.d.ts says what there is; docs/workers.md what each call means.
import { createHash } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient, ErrorReply, RESP_TYPES } from 'redis';
import { argsOf, readLimits, Unread } from './limits.js';

const BLOCK_MS = 2000; // how long a read waits
const BLOCK_EACH_MS = 100; // the same where a worker goes round several partitions
const GRACE_MS = 4000; // how long the job in hand may go on after a stop
const TRIES = 20; // of what a worker says, which may be said twice

export class Refused extends Error {
  constructor(why) {
    super(why.message, { cause: why });
    this.code = why.message.split(' ', 1)[0];
  }
}
export class Unknown extends Error {}
export class Dead extends Error {}
export class RetryIn extends Error {
  constructor(ms, reason = 'failed') {
    super(reason);
    this.ms = ms;
  }
}
export class Throttled extends Error {
  constructor(retryAfterMs = 0, budget = undefined, reason = 'throttled') {
    super(reason);
    Object.assign(this, { retryAfterMs, budget });
  }
}

export class Drip {
  #of; // url, prefix, partitions and partitionBy
  #pushes; // a connection whose calls are never repeated
  #says; // one whose calls may be
  #stopping = false;
  #stopped; #tellStopped;
  #unread; // headers of limits that could not be understood

  constructor(url = 'redis://127.0.0.1:7379', { prefix = 'drip', partitions = 1, partitionBy, log = console.warn } = {}) {
    this.#unread = new Unread(log);
    this.#of = { url, prefix, partitions, partitionBy };
    this.#stopped = new Promise((resolve) => (this.#tellStopped = resolve));
  }

  get unreadHeaders() {
    return this.#unread.count;
  }

  // A job is bytes, so replies are too.
  async #connect(reconnectStrategy) {
    const client = createClient({ url: this.#of.url, RESP: 2, socket: { reconnectStrategy } });
    client.on('error', () => {}); // the call that meets it throws
    await client.connect();
    return client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  }

  #key(word, partition, name) {
    return [this.#of.prefix, word, this.#of.partitions > 1 && `{${partition}}`, name].filter(Boolean).join(':');
  }

  async #call(name, bucket, args) {
    if (!this.#pushes?.isOpen) this.#pushes = await this.#connect(false);
    const partition = crc16(bucket.split(':').slice(0, this.#of.partitionBy).join(':')) % this.#of.partitions;
    try {
      return await this.#pushes.sendCommand(['FCALL', name, '1', this.#key('queue', partition, bucket), ...args]);
    } catch (why) {
      if (why instanceof ErrorReply) throw new Refused(why);
      throw new Unknown(`cannot tell whether ${name} of ${bucket} happened: ${why.message}`, { cause: why });
    }
  }

  async push(bucket, ...jobs) {
    return receipt(await this.#call('drip_push', bucket, jobs));
  }

  async submit(bucket, job, options = {}) {
    const named = { ID: options.id, DELAY: options.delayMs, AT: options.atMs, TTL: options.ttlMs, COST: options.cost };
    const args = Object.entries(named).flatMap(([name, value]) => (value === undefined ? [] : [name, String(value)]));
    const headers = { ...options.headers, ...(options.traceparent && { traceparent: options.traceparent }) };
    for (const [name, value] of Object.entries(headers)) args.push('HEADER', name, value);
    const reply = await this.#call('drip_submit', bucket, [job, ...args]);
    const [verdict, id, expectedMs, by] = reply.slice(5);
    return { ...receipt(reply), verdict: String(verdict), id: String(id), expectedMs, by: String(by) };
  }

  async work(run, { route = 'default', name = `${hostname()}-${process.pid}`, signals = true } = {}) {
    const stop = () => this.stop();
    if (signals) for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, stop);
    const streams = Array.from({ length: this.#of.partitions }, (_, n) => this.#key('ready', n, route === 'default' ? '' : route));
    const backOff = (tries) => Math.min(1000, 50 * 2 ** tries);
    const reads = await this.#connect(backOff);
    this.#says = await this.#connect(backOff);
    const read = ['XREADGROUP', 'GROUP', 'workers', name, 'COUNT', '1', 'BLOCK', String(streams.length > 1 ? BLOCK_EACH_MS : BLOCK_MS)];
    try {
      for (const stream of streams) await this.#again(this.#says, ['FCALL', 'drip__route', '1', stream, '']);
      for (let at = 0; !this.#stopping; at = (at + 1) % streams.length) {
        const stream = streams[at];
        const reply = await this.#again(reads, [...read, 'STREAMS', stream, '>']);
        for (const [entry, fields] of reply?.[0][1] ?? []) await this.#one(stream, name, run, String(entry), fields);
      }
    } finally {
      if (signals) for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stop);
      reads.destroy();
    }
  }

  stop() {
    this.#stopping = true;
    this.#tellStopped();
  }

  async close() {
    for (const client of [this.#pushes, this.#says]) if (client?.isOpen) await client.close();
  }

  // Say it again when the connection was lost: whatever a worker says may be said twice.
  async #again(client, args) {
    for (let tries = 0; ; tries += 1) {
      try {
        return await client.sendCommand(args);
      } catch (why) {
        if (why instanceof ErrorReply || tries === TRIES) throw why;
        await sleep(Math.min(1000, 50 * 2 ** tries));
      }
    }
  }

  // Say it with what was told of limits; where that has no place, because no such budget is above the bucket, without it.
  async #with(told, say) {
    try {
      return await say(told);
    } catch (why) {
      if (told.length === 0 || !(why instanceof ErrorReply) || !why.message.startsWith('BADARG')) throw why;
      return say([]);
    }
  }

  // One job: run it, renew its lease meanwhile, and say how it ended.
  async #one(stream, name, run, entry, flat) {
    const fail = (...args) => this.#again(this.#says, ['FCALL', 'drip_fail', '1', stream, entry, ...args]);
    const lost = new AbortController();
    let job;
    try {
      job = jobOf(entry, flat, lost.signal, this.#unread);
    } catch (why) { // an entry that is none: dripd buries it
      return fail('REASON', `no job: ${why}`);
    }
    const claim = ['XCLAIM', stream, 'workers', name, '0', entry, 'JUSTID'];
    const renew = setInterval(async () => {
      const still = await this.#again(this.#says, claim).catch(() => [entry]);
      if (still.length === 0) lost.abort();
    }, job.leaseMs / 3);
    let timer;
    const late = this.#stopped.then(() => new Promise((resolve) => (timer = setTimeout(resolve, GRACE_MS, 'late'))));
    const ran = (async () => run(job))().then(() => 'done', (why) => ({ why }));
    const end = await Promise.race([ran, late]);
    clearInterval(renew);
    clearTimeout(timer);
    if (end === 'done') return this.#with(job.told, (told) => this.#again(this.#says, ['FCALL', 'drip_ack', '1', stream, entry, ...told]));
    if (end === 'late') {
      lost.abort();
      return fail('RETRY_IN', '0', 'KEEP', 'REASON', 'worker stopped');
    }
    return this.#with(job.told, (told) => fail(...said(end.why, job.waitMs), ...told));
  }
}

// What drip_fail is told of something that was thrown.
function said(why, waitMs) {
  const reason = ['REASON', String(why?.message || why)];
  if (why instanceof Throttled) {
    const ms = why.retryAfterMs > 0 ? why.retryAfterMs : waitMs;
    const after = ms > 0 ? ['RETRY_AFTER', String(Math.trunc(ms))] : [];
    return ['THROTTLED', ...after, ...(why.budget ? ['IN', why.budget] : []), ...reason];
  }
  if (why instanceof Dead) return ['DEAD', ...reason];
  if (why instanceof RetryIn) return ['RETRY_IN', String(Math.trunc(why.ms)), ...reason];
  return reason;
}

// The CRC16 of Redis Cluster.
function crc16(text) {
  const shift = (crc) => (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  return Buffer.from(text).reduce((crc, byte) => Array.from({ length: 8 }).reduce(shift, crc ^ (byte << 8)), 0);
}

const receipt = ([accepted, depth, capacity, retryAfterMs, etaMs]) => ({ accepted, depth, capacity, retryAfterMs, etaMs });

function jobOf(entry, flat, signal, unread) {
  const fields = {};
  for (let at = 0; at < flat.length; at += 2) fields[String(flat[at])] = flat[at + 1];
  if (!fields.bucket || !fields.job || !fields.attempt) throw new Error('it has no bucket, job or attempt');
  const of = Object.entries(fields).filter(([field]) => field.startsWith('h:'));
  const headers = Object.fromEntries(of.map(([field, value]) => [field.slice(2), String(value)]));
  const hash = createHash('sha256').update(fields.bucket).digest('hex').slice(0, 16);
  const told = []; // what the other side said about its limits
  return {
    limits(headers, budget) {
      const answer = readLimits(headers);
      told.splice(0, told.length, ...argsOf(answer.limits, budget));
      this.waitMs = answer.waitMs;
      unread.add(answer.unread);
    },
    told, waitMs: 0, // how long a refused caller is to wait
    bucket: String(fields.bucket), body: fields.job, attempt: Number(fields.attempt), id: `${fields.id ?? entry}-${hash}`, entry, headers,
    traceparent: headers.traceparent, leaseMs: Number(fields.lease_ms), signal,
  };
}
