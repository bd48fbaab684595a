// nginx: limit_req with a burst and without nodelay, which holds requests back as a queue. A job is a request that names its
// bucket, and it is handled when it arrives at the backend behind proxy_pass.

import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { connect as http2 } from 'node:http2'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import { Worker as Thread, isMainThread, parentPort, workerData } from 'node:worker_threads'
import { Record, die, payload, work } from './common.mjs'

// The backend has a thread of its own, so that sending the requests does not delay the clock. On a connection nginx sends one
// request at a time, without a body.
function backend({ memory, total }) {
  const record = new Record({ memory, total })
  const server = createServer({ noDelay: true }, socket => {
    let request = ''
    socket.setEncoding('latin1')
    socket.on('error', () => {})
    socket.on('data', text => {
      request += text
      if (!request.endsWith('\r\n\r\n')) return
      const job = /bucket=(\d+)[^]*x-job: (\d+)/.exec(request)
      if (job) record.note(parseInt(job[1], 10), job[2])
      request = ''
      socket.write('HTTP/1.1 204 No Content\r\n\r\n')
    })
  })
  server.listen({ host: '127.0.0.1', port: 0, backlog: 65535 }, () => parentPort.postMessage(server.address().port))
  record.done.then(() => parentPort.postMessage('done'))
}

// limit_req takes whole requests a second or a minute, and reckons in thousandths of a request a second.
function nearest(intervalUs) {
  const candidates = [1, 60].map(period => {
    const count = Math.max(1, Math.round((period * 1e6) / intervalUs))
    const us = 1e9 / Math.floor((count * 1000) / period)
    return { rate: `${count}r/${period === 1 ? 's' : 'm'}`, us, error: Math.abs(us - intervalUs) }
  })
  return candidates.sort((a, b) => a.error - b.error)[0]
}

function configuration({ buckets, jobs, rate, port, socket, directory, version }) {
  const [major, minor, patch] = version.split('.').map(Number)
  const modern = major * 1e6 + minor * 1e3 + patch >= 1_025_001 // since when http2 is a directive
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  return `
    daemon off;
    worker_processes 1;
    pid ${directory}/pid;
    error_log stderr error;
    events { worker_connections ${2 * buckets + 4096}; }
    http {
      access_log off;
      ${temporary.map(kind => `${kind}_temp_path ${directory}/${kind};`).join(' ')}
      limit_req_zone $arg_bucket zone=buckets:${Math.ceil(10 + buckets / 4000)}m rate=${rate};
      limit_req_log_level info;
      upstream backend {
        server 127.0.0.1:${port};
        keepalive ${buckets + 1024};
        keepalive_requests ${buckets * jobs + 1};
      }
      server {
        listen unix:${socket}${modern ? '' : ' http2'} backlog=4096;
        ${modern ? 'http2 on;' : ''}
        http2_max_concurrent_streams ${Math.max(128, jobs)};
        keepalive_requests ${jobs + 1};
        keepalive_timeout 1h;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        location / {
          limit_req zone=buckets burst=${jobs};
          proxy_pass http://backend;
        }
        location = /warm {
          proxy_pass http://backend;
        }
      }
    }
  `
}

// Start nginx below a shell that ends it, and removes its directory, as soon as this program closes the pipe or is gone.
async function start(program, directory, socket) {
  const guard = 'directory=$1; shift; "$@" & cat >/dev/null; kill $! 2>/dev/null; wait; rm -rf "$directory"'
  const nobody = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {}
  if (nobody.uid) chownSync(directory, nobody.uid, nobody.gid)
  const command = [program, '-e', 'stderr', '-p', directory, '-c', join(directory, 'nginx.conf')]
  const shell = spawn('/bin/sh', ['-c', guard, 'sh', directory, ...command], {
    cwd: '/',
    detached: true, // a signal from the terminal is for this program, which then closes the pipe
    stdio: ['pipe', 'ignore', 'inherit'],
    ...nobody
  })
  const end = async () => {
    shell.stdin.end()
    await once(shell, 'exit')
  }
  for (let wait = 0; ; wait += 10) {
    const probe = connect(socket)
    const open = await once(probe, 'connect').then(() => true, () => false)
    probe.destroy()
    if (open) return end
    if (wait > 5000) {
      await end()
      die('nginx does not start')
    }
    await sleep(10)
  }
}

// One connection a bucket: its requests share it as streams, so that a long queue costs no socket a job. A first request,
// without a limit, opens what connections to the backend the first jobs would have to wait for.
async function client(socket, jobs) {
  const createConnection = () => connect(socket)
  const session = http2('http://nginx', { createConnection, maxSessionMemory: 1024, peerMaxConcurrentStreams: jobs })
  session.setMaxListeners(0)
  session.on('error', error => die(`nginx: ${error.message}`))
  await once(session, 'remoteSettings')
  const warm = session.request({ ':path': '/warm' }).resume()
  await once(warm, 'close')
  return session
}

async function main() {
  const { buckets, intervalUs, jobs, seconds } = work()
  const program = [...process.env.PATH.split(':').map(path => join(path, 'nginx')), '/usr/sbin/nginx'].find(existsSync)
  if (!program) die('no nginx on the PATH or in /usr/sbin: run setup.sh first')
  const version = /nginx\/([\d.]+)/.exec(spawnSync(program, ['-v'], { encoding: 'utf8' }).stderr)[1]

  const record = new Record({ total: buckets * jobs })
  const { memory, total } = record
  const thread = new Thread(new URL(import.meta.url), { workerData: { memory, total } })
  thread.on('error', error => die(error.message))
  const [port] = await once(thread, 'message')
  thread.once('message', record.resolve) // that all were handled

  const directory = mkdtempSync(join(tmpdir(), 'peer-nginx-'))
  const socket = join(directory, 'socket')
  const { rate, us } = nearest(intervalUs)
  const settings = { buckets, jobs, rate, port, socket, directory, version }
  writeFileSync(join(directory, 'nginx.conf'), configuration(settings))
  const end = await start(program, directory, socket)
  const sessions = await Promise.all(Array.from({ length: buckets }, () => client(socket, jobs)))

  // nginx begins with the first request: there is no queueing beforehand. Every bucket's first job goes first, and so on;
  // between two rounds what was sent may leave.
  const answers = new Map()
  const began = performance.now()
  for (let place = 0; place < jobs; place++) {
    const job = payload(place)
    sessions.forEach((session, bucket) => {
      const request = session.request({ ':path': `/?bucket=${bucket}`, 'x-job': job })
      request.on('response', ({ ':status': status }) => answers.set(status, (answers.get(status) ?? 0) + 1))
      request.on('error', () => {}) // the session says why
      request.resume()
    })
    await turn()
  }
  const queuedUs = (performance.now() - began) * 1000
  await record.end(seconds)

  answers.delete(204)
  for (const [status, count] of answers) console.error(`nginx answered ${status} to ${count} jobs`)
  const inexact = us === intervalUs ? '' : ', the nearest it can express'
  const note = `limit_req rate=${rate} burst=${jobs} in one worker process${inexact}; delays are whole ms`
  await record.print({ peer: 'nginx', version, note }, queuedUs)
  for (const session of sessions) session.removeAllListeners('error').on('error', () => {})
  await end()
  process.exit(0)
}

await (isMainThread ? main() : backend(workerData))
