// Push jobs into the buckets of dripd, and work on them. index.d.ts says what there is; docs/workers.md what each call means.
import { hostname } from 'node:os';
import { Connection } from './connection.js';
import { Unread } from './limits.js';
import { check, Worker } from './worker.js';

export { Dead, Refused, RetryIn, Throttled, Unknown } from './errors.js';

let workers = 0; // in this process, so far

export class Drip {
  #of; // url, prefix, partitions, partitionBy and log
  #pushes; // its calls are never repeated
  #working = new Map(); // each worker, and the promise of its end
  #unread; // headers of limits that could not be understood

  constructor(url = 'redis://127.0.0.1:7379', { prefix = 'drip', partitions = 1, partitionBy, log = console.warn } = {}) {
    this.#unread = new Unread(log);
    this.#of = { url, prefix, partitions, partitionBy, log };
    this.#pushes = new Connection(url);
  }

  get unreadHeaders() {
    return this.#unread.count;
  }

  #key(word, partition, name) {
    return [this.#of.prefix, word, this.#of.partitions > 1 && `{${partition}}`, name].filter(Boolean).join(':');
  }

  #call(name, bucket, args) {
    const partition = crc16(bucket.split(':').slice(0, this.#of.partitionBy).join(':')) % this.#of.partitions;
    return this.#pushes.call(['FCALL', name, '1', this.#key('queue', partition, bucket), ...args]);
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

  async work(run, { route = 'default', name, signals = true } = {}) {
    check(run);
    const { url, partitions, log } = this.#of;
    const streams = Array.from({ length: partitions }, (_, n) => this.#key('ready', n, route === 'default' ? '' : route));
    name ??= `${hostname()}-${process.pid}-${(workers += 1)}`;
    const worker = new Worker({ url, name, streams, run, unread: this.#unread, log });
    const stop = () => this.stop();
    if (signals) for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stop);
    const ended = worker.work();
    this.#working.set(worker, ended);
    try {
      await ended;
    } finally {
      this.#working.delete(worker);
      if (signals) for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stop);
    }
  }

  stop() {
    for (const worker of this.#working.keys()) worker.stop();
  }

  async close() {
    this.stop();
    await Promise.allSettled(this.#working.values());
    await this.#pushes.close();
  }
}

// The CRC16 of Redis Cluster.
function crc16(text) {
  const shift = (crc) => (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  return Buffer.from(text).reduce((crc, byte) => Array.from({ length: 8 }).reduce(shift, crc ^ (byte << 8)), 0);
}

const receipt = ([accepted, depth, capacity, retryAfterMs, etaMs]) => ({ accepted, depth, capacity, retryAfterMs, etaMs });
