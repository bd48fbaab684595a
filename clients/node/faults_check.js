// What once lost jobs, or hung: each check of this client is a function here. faults_check.js NAME, with a dripd at $REDIS_URL.
import assert from 'node:assert';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { Dead, Drip, Refused, RetryIn, Throttled, Unknown } from './index.js';

const url = process.env.REDIS_URL;
const lines = [];
const drip = new Drip(url, { log: (line) => lines.push(line) });

// Ask Redis beside the client that is checked.
async function ask(...args) {
  const redis = createClient({ url, RESP: 2 });
  await redis.connect();
  try {
    return await redis.sendCommand(args);
  } finally {
    redis.destroy();
  }
}
const connections = async () => String(await ask('CLIENT', 'LIST')).split('\n').filter((line) => line.includes('user=counted')).length;

// A server that answers each call of a function with this error, or hangs up.
async function says(answer) {
  const server = net.createServer((socket) => {
    socket.unref().on('error', () => {}).on('data', (bytes) => {
      for (const command of String(bytes).split(/(?=\*\d+\r\n)/)) {
        if (!command.includes('FCALL')) socket.write('+OK\r\n');
        else if (answer) socket.write(`-${answer}\r\n`);
        else socket.destroy();
      }
    });
  }).unref();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `redis://127.0.0.1:${server.address().port}`;
}

const refusal = (push, kind) => push.then(() => assert.fail('it was not refused'), (why) => (assert(why instanceof kind, String(why)), why));

const checks = {
  // Work that only replies something to be gone through is a TypeError, and its job goes to the next worker as a first try.
  async not_run() {
    const each = function* () {};
    const later = async function* () {};
    for (const run of [each, later, undefined, null, 'later']) await assert.rejects(drip.work(run, { signals: false }), TypeError);
    for (const [number, run] of [() => each(), () => later(), async () => later()].entries()) {
      await drip.push(`late-${number}`, 'x');
      await assert.rejects(drip.work(run, { signals: false }), TypeError);
      await drip.work((job) => {
        assert.deepStrictEqual([job.bucket, job.attempt], [`late-${number}`, 1]);
        drip.stop();
      }, { signals: false });
    }
    assert.strictEqual((await ask('XPENDING', 'drip:ready', 'workers'))[0], 0);
    console.log('5 are seen at once, 3 when they reply');
  },

  // Whoever pushes or works at once has connections that somebody closes, and nothing keeps the process when all has ended.
  async ends() {
    await ask('ACL', 'SETUSER', 'counted', 'on', '>secret', '~*', '+@all');
    const drip = new Drip(url.replace('//', '//counted:secret@'));
    await Promise.all(Array.from({ length: 20 }, () => drip.push('many', 'x')));
    assert.strictEqual(await connections(), 1, 'pushes share one');
    let done = 0;
    const run = async () => {
      done += 1;
      if (done === 20) drip.stop();
    };
    await Promise.all([drip.work(run), drip.work(run), drip.work(run)]);
    assert.strictEqual(await connections(), 1, 'each worker closed its own');
    assert.deepStrictEqual(process.getActiveResourcesInfo().filter((name) => name === 'Timeout'), [], 'nothing waits for a time to be over');
    assert.deepStrictEqual([process.listenerCount('SIGTERM'), process.listenerCount('SIGINT')], [0, 0]);
    await drip.push('again', 'x');
    await drip.work(() => drip.stop(), { signals: false });
    await Promise.all([drip.close(), drip.close()]);
    assert.strictEqual(await connections(), 0);
    await drip.push('many', 'x'); // and this connection is left open
    console.log('nothing is left');
  },

  // The worker of the README, which says no more than this.
  async readme() {
    await drip.push('sms:alice', 'hello');
    console.log('begins');
    await drip.work(async (job) => console.log(String(job.body)));
  },

  // What is closed while it works gives its job back first.
  async close() {
    await drip.push('long', 'x');
    const began = Promise.withResolvers?.() ?? (() => {
      const made = {};
      made.promise = new Promise((resolve) => (made.resolve = resolve));
      return made;
    })();
    const ended = drip.work(async (job) => {
      began.resolve();
      await sleep(60_000, undefined, { signal: job.signal });
    }, { signals: false });
    await began.promise;
    await drip.close();
    await ended;
    assert.strictEqual((await ask('XPENDING', 'drip:ready', 'workers'))[0], 0);
    console.log('given back');
  },

  // What fails is logged, and nothing that is thrown ends the worker with its job in hand.
  async logs() {
    const thrown = [
      new RangeError('wrong'), new Dead('no use'), new RetryIn(60_000, 'busy'), new Throttled(60_000), Object.create(null), null, undefined, Symbol('x'),
      new RetryIn('soon'), new RetryIn(-1), new Throttled(5, 'no budget'), new Throttled(5, {}),
    ];
    for (const [number, why] of thrown.entries()) {
      await drip.push(`failed-${number}`, 'secret');
      await drip.work(() => {
        drip.stop();
        throw why;
      }, { signals: false });
      assert.strictEqual(lines.filter((line) => line.includes(`of bucket failed-${number}, try 1: `)).length, 1, lines.join('\n'));
    }
    assert.strictEqual((await ask('XPENDING', 'drip:ready', 'workers'))[0], 0);
    assert(/RangeError: wrong\n.* at /.test(lines[0]) && lines[1].endsWith('Dead: no use') && !lines.join().includes('secret'), lines.join('\n'));
    console.log(`${thrown.length} logged`);
  },

  // What Redis refuses says why, by its code, and is not Unknown; what was never sent is not either.
  async codes() {
    const answers = ['ERR Function not found', "READONLY You can't write against", 'LOADING Redis is loading', 'NOAUTH Authentication required.', 'BADBUCKET no'];
    for (const answer of answers) {
      const why = await refusal(new Drip(await says(answer)).push('a', 'x'), Refused);
      assert.deepStrictEqual([why.code, why.message], [answer.split(' ')[0], answer]);
    }
    for (const away of ['redis://127.0.0.1:1', 'redis://localhost:1', 'redis://no.such.host.invalid']) {
      assert.strictEqual((await refusal(new Drip(away).push('a', 'x'), Refused)).code, 'AWAY');
    }
    assert.strictEqual((await refusal(new Drip(url.replace('//', '//user:wrong@')).push('a', 'x'), Refused)).code, 'WRONGPASS');
    await refusal(new Drip(await says()).push('a', 'x'), Unknown);
    await refusal(drip.push('a', 5), TypeError);
    console.log(`${answers.length} codes`);
  },
};

await checks[process.argv[2]]();
