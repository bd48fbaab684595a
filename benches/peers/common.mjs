// What every Node program here shares: its arguments, the record of the handled jobs, and what it prints at the end.

import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'

// End with one line on stderr: the bench must not take it for a run.
export function die(message) {
  console.error(`${process.argv[1].split('/').pop()}: ${message}`)
  process.exit(1)
}

// The work: B buckets of J jobs, one job every I microseconds a bucket, for S seconds at most.
export function work(modes = []) {
  const number = { type: 'string' }
  let values
  try {
    const options = { buckets: number, 'interval-us': number, jobs: number, seconds: number, mode: number }
    values = parseArgs({ options }).values
  } catch (error) {
    die(error.message)
  }
  const positive = name => {
    const value = Number(values[name])
    if (!Number.isInteger(value) || value < 1) die(`--${name} must be a whole number of at least 1`)
    return value
  }
  const mode = values.mode ?? modes[0]
  if (modes.length > 0 && !modes.includes(mode)) die(`--mode is ${modes.join(' or ')}`)
  return {
    buckets: positive('buckets'),
    intervalUs: positive('interval-us'),
    jobs: positive('jobs'),
    seconds: positive('seconds'),
    mode
  }
}

// A package that setup.sh installs, and its version.
export async function load(name) {
  try {
    const at = new URL(`node_modules/${name}/package.json`, import.meta.url)
    return { ...(await import(name)), version: JSON.parse(readFileSync(at, 'utf8')).version }
  } catch (error) {
    die(`cannot load ${name} (${error.code ?? error.message}): run setup.sh first`)
  }
}

// The bench's Redis, emptied. One that is not there is the end, not something to wait for.
export async function redis(Redis) {
  const url = process.env.REDIS_URL ?? die('REDIS_URL is not set')
  const connection = new Redis(url, { lazyConnect: true, maxRetriesPerRequest: null })
  connection.setMaxListeners(0) // one connection for every bucket
  connection.on('error', error => die(`redis: ${error.message}`))
  await connection.connect().catch(error => die(`redis: ${error.message}`))
  await connection.flushall()
  return connection
}

// A job is 100 bytes that begin with its place in its bucket's queue; `note` reads it back to check the order.
export const payload = place => String(place).padEnd(100, '.')

// When each job was handled. In shared memory, so that a thread may write it and another print it.
export class Record {
  constructor({ total, memory = new SharedArrayBuffer(8 + total * 16) }) {
    this.total = total
    this.memory = memory
    this.count = new Int32Array(memory, 0, 1)
    this.at = new Float64Array(memory, 8, total)
    this.bucket = new Int32Array(memory, 8 + total * 8, total)
    this.place = new Int32Array(memory, 8 + total * 12, total)
    this.done = new Promise(resolve => (this.resolve = resolve))
  }

  // The handler: the moment first, then everything else.
  note(bucket, job) {
    const now = performance.timeOrigin + performance.now()
    const n = this.count[0]
    if (n === this.total) return console.error('more jobs handled than queued')
    this.at[n] = now
    this.bucket[n] = bucket
    this.place[n] = parseInt(job, 10)
    this.count[0] = n + 1
    if (n + 1 === this.total) this.resolve()
  }

  // Wait until every job was handled or the time is over, whatever is first.
  async end(seconds) {
    await Promise.race([this.done, new Promise(resolve => setTimeout(resolve, seconds * 1000))])
  }

  // Print the run. Jobs out of their order are the peer's affair, and worth a line on stderr.
  async print(about, queuedUs) {
    const n = this.count[0]
    const lines = [JSON.stringify(about), JSON.stringify({ queued_us: Math.round(queuedUs) })]
    const next = new Map()
    let astray = 0
    for (let i = 0; i < n; i++) {
      lines.push(`${this.bucket[i]} ${Math.round(this.at[i] * 1000)}`)
      if (this.place[i] !== (next.get(this.bucket[i]) ?? 0)) astray++
      next.set(this.bucket[i], this.place[i] + 1)
    }
    if (n < this.total) console.error(`${n} of ${this.total} jobs handled`)
    if (astray > 0) console.error(`${astray} jobs handled out of their bucket's order`)
    if (!process.stdout.write(lines.join('\n') + '\n')) await once(process.stdout, 'drain')
  }
}
