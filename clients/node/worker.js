// A worker: it takes one job at a time, renews its lease while it runs, and says how it ended.
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Connection } from './connection.js';
import { Dead, passes, Refused, RetryIn, textOf, Throttled } from './errors.js';
import { argsOf, readLimits } from './limits.js';

const BLOCK_MS = 2000; // how long a read waits
const BLOCK_EACH_MS = 100; // the same where a worker goes round several partitions
const GRACE_MS = 4000; // how long the job in hand may go on after a stop
const LAST_WORDS_MS = 1000; // and how long after that it is still told how a job ended, where Redis is away
const LOG_EVERY_MS = 60_000; // that Redis is away

// One `work`: its stop, its connections and the job in its hand. Several may run in one process.
export class Worker {
  #name; #streams; #run; #unread; #log;
  #reads; #says; // a read waits for jobs, so what is said has a connection of its own
  #stop = new AbortController();
  #stoppedMs; // when
  #lateTimer;
  #logged; // while Redis is away: why, and when that was logged

  constructor({ url, name, streams, run, unread, log }) {
    [this.#name, this.#streams, this.#run, this.#unread, this.#log] = [name, streams, run, unread, log];
    [this.#reads, this.#says] = [new Connection(url), new Connection(url)];
  }

  async work() {
    const read = ['XREADGROUP', 'GROUP', 'workers', this.#name, 'COUNT', '1', 'BLOCK', String(this.#streams.length > 1 ? BLOCK_EACH_MS : BLOCK_MS)];
    try {
      for (const stream of this.#streams) await this.#openRoute(stream);
      for (let at = 0; !this.#stop.signal.aborted; at = (at + 1) % this.#streams.length) {
        const stream = this.#streams[at];
        try {
          const reply = await this.#again(this.#reads, [...read, 'STREAMS', stream, '>']);
          for (const [entry, fields] of reply?.[0][1] ?? []) await this.#one(stream, String(entry), fields);
        } catch (why) {
          if (!(why instanceof Refused) || !['NOGROUP', 'UNBLOCKED'].includes(why.code)) throw why;
          await this.#openRoute(stream); // somebody deleted it
        }
      }
    } finally {
      clearTimeout(this.#lateTimer);
      await Promise.all([this.#reads.close(true), this.#says.close(true)]);
    }
  }

  stop() {
    if (this.#stop.signal.aborted) return;
    this.#stoppedMs = performance.now();
    // Where Redis hangs, nothing is waited for any longer.
    this.#lateTimer = setTimeout(() => [this.#reads, this.#says].forEach((one) => one.close(true)), GRACE_MS + LAST_WORDS_MS);
    this.#stop.abort();
  }

  #openRoute(stream) {
    return this.#again(this.#says, ['FCALL', 'drip__route', '1', stream, '']);
  }

  // Repeat a call until Redis answers: whatever a worker says may be said twice. After a stop for so long and no longer: then there is no reply.
  async #again(connection, args, graceMs = 0) {
    for (let tries = 0; ; tries += 1) {
      try {
        const reply = await connection.call(args);
        if (this.#logged) this.#log(`dripd: worker ${this.#name} goes on`);
        this.#logged = undefined;
        return reply;
      } catch (why) {
        if (!passes(why)) throw why;
        this.#isAway(why);
      }
      const pauseMs = Math.min(1000, 50 * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);
      if (this.#leftMs(graceMs) > 0) await this.#pause(Math.min(pauseMs, this.#leftMs(graceMs)), graceMs);
      if (this.#leftMs(graceMs) <= 0) return undefined;
    }
  }

  // How long something may go on that has so much time after a stop.
  #leftMs(graceMs) {
    return this.#stoppedMs === undefined ? Infinity : this.#stoppedMs + graceMs - performance.now();
  }

  #pause(ms, graceMs) {
    return sleep(ms, undefined, graceMs > 0 ? {} : { signal: this.#stop.signal }).catch(() => {}); // a stop ends it
  }

  #isAway(why) {
    if (this.#logged && this.#logged.code === why.code && performance.now() < this.#logged.ms + LOG_EVERY_MS) return;
    this.#logged = { code: why.code, ms: performance.now() };
    const hint = textOf(why).includes('unction not found') ? ' (has a daemon been here?)' : '';
    this.#log(`dripd: worker ${this.#name} waits, and tries again: ${textOf(why)}${hint}`);
  }

  // One job: run it, renew its lease meanwhile, and say how it ended.
  async #one(stream, entry, flat) {
    const lost = new AbortController();
    let job;
    try {
      job = jobOf(entry, flat, lost.signal, this.#unread);
    } catch (why) { // an entry that is none: dripd buries it
      this.#log(`dripd: entry ${entry} of ${stream} is no job: ${textOf(why)}`);
      return this.#tell(stream, entry, [['drip_fail', 'REASON', `no job: ${textOf(why)}`]]);
    }
    const ran = (async () => notYet(await this.#run(job)))().then(() => ({}), (why) => ({ why, failed: true }));
    const end = await this.#held(stream, entry, job.leaseMs, lost, ran);
    if (end === 'late') {
      lost.abort();
      this.#log(`dripd: job ${job.id} of bucket ${job.bucket} goes on after a stop: it is given back`);
      return this.#tell(stream, entry, [['drip_fail', 'RETRY_IN', '0', 'KEEP', 'REASON', 'worker stopped']]);
    }
    const plain = end.failed ? ['drip_fail', 'REASON', textOf(end.why)] : ['drip_ack'];
    if (end.failed) this.#log(`dripd: job ${job.id} of bucket ${job.bucket}, try ${job.attempt}: ${shown(end.why)}`);
    if (end.why instanceof NotRun) {
      await this.#tell(stream, entry, [['drip_fail', 'RETRY_IN', '0', 'KEEP', 'REASON', end.why.message]]);
      throw new TypeError(end.why.message);
    }
    const how = end.failed ? howOf(end.why, job.waitMs) : plain;
    return this.#tell(stream, entry, [[...how, ...job.told], how, plain]);
  }

  // Hold a job while it runs: replies how it ended, or 'late'.
  async #held(stream, entry, leaseMs, lost, ran) {
    const claim = ['XCLAIM', stream, 'workers', this.#name, '0', entry, 'JUSTID'];
    let renewal;
    let graceTimer;
    const renewIn = (ms) => (renewal = setTimeout(renew, ms));
    const renew = async () => {
      const stayed = await this.#says.call(claim).then((still) => still.length > 0, (why) => (why.code === 'NOGROUP' ? false : why));
      if (stayed === false) lost.abort();
      else if (stayed !== true) this.#isAway(stayed);
      if (renewal !== undefined) renewIn(stayed instanceof Error ? Math.min(leaseMs / 3, 1000) : leaseMs / 3);
    };
    renewIn(leaseMs / 3);
    let begin;
    const late = new Promise((resolve) => {
      begin = () => (graceTimer = setTimeout(resolve, this.#leftMs(GRACE_MS), 'late'));
      if (this.#stop.signal.aborted) begin();
      else this.#stop.signal.addEventListener('abort', begin);
    });
    const end = await Promise.race([ran, late]);
    this.#stop.signal.removeEventListener('abort', begin);
    clearTimeout(graceTimer);
    clearTimeout(renewal);
    renewal = undefined;
    return end;
  }

  // Tell dripd how a job ended: in the first of these ways that is not refused. No such budget may be above its bucket.
  async #tell(stream, entry, ways) {
    for (const [number, [name, ...args]] of ways.entries()) {
      try {
        const reply = await this.#again(this.#says, ['FCALL', name, '1', stream, entry, ...args], GRACE_MS + LAST_WORDS_MS);
        if (reply === undefined) this.#log(`dripd: cannot tell how job ${entry} ended, so it comes again`);
        return;
      } catch (why) {
        if (number + 1 === ways.length) throw why;
        if (ways[number + 1].length !== args.length + 1) this.#log(`dripd: what is said of job ${entry} is refused, so less is said: ${textOf(why)}`);
      }
    }
  }
}

// Work that replied something that has yet to run.
class NotRun extends TypeError {}

function notYet(reply) {
  if (typeof reply?.next !== 'function') return;
  throw new NotRun('the work replied an iterator, which has not run: work awaits a promise, and goes through nothing');
}

// Work that only replies something to be gone through would be acknowledged without having run.
export function check(run) {
  if (typeof run !== 'function') throw new TypeError(`work needs a function that is called with each job, not ${textOf(run)}`);
  if (!/Generator/.test(Object.prototype.toString.call(run))) return;
  throw new TypeError('a generator would not run: work calls a plain or async function');
}

// For the log: with the line that threw it, where that was not meant.
function shown(why) {
  const isMeant = [Dead, RetryIn, Throttled].some((kind) => why instanceof kind);
  return isMeant ? `${why.constructor.name}: ${textOf(why)}` : String(why?.stack || textOf(why));
}

// What drip_fail is told of something that was thrown.
function howOf(why, waitMs) {
  const reason = ['REASON', textOf(why)];
  if (why instanceof Throttled) {
    const ms = why.retryAfterMs > 0 ? why.retryAfterMs : waitMs;
    const after = ms > 0 ? ['RETRY_AFTER', String(Math.trunc(ms))] : [];
    return ['drip_fail', 'THROTTLED', ...after, ...(why.budget ? ['IN', String(why.budget)] : []), ...reason];
  }
  if (why instanceof Dead) return ['drip_fail', 'DEAD', ...reason];
  if (why instanceof RetryIn) return ['drip_fail', 'RETRY_IN', String(Math.trunc(why.ms)), ...reason];
  return ['drip_fail', ...reason];
}

function jobOf(entry, flat, signal, unread) {
  const fields = {};
  for (let at = 0; at < flat.length; at += 2) fields[String(flat[at])] = flat[at + 1];
  if (!fields.bucket || !fields.job || !fields.attempt || !(fields.lease_ms > 0)) throw new Error('it has no bucket, job, attempt or lease');
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
