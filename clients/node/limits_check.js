// Does limits.js read each form as ../limit-headers.json says? A check of this client.
import assert from 'node:assert';
import { readFileSync } from 'node:fs';
import { argsOf, readLimits, Unread } from './limits.js';

const table = JSON.parse(readFileSync(process.argv[2], 'utf8'));
for (const { name, headers, now_ms: nowMs = table.now_ms, limits = [], times = 0, wait = 0, unread = [] } of table.cases) {
  const of = {};
  for (const [header, value] of headers) of[header] = header in of ? [of[header], value].flat() : value;
  const answer = readLimits(of, nowMs);
  const got = [answer.limits.map((one) => [one.remaining, one.resetMs, one.limit ?? null, one.units]), answer.waitMs, answer.unread.sort()];
  assert.deepStrictEqual(got, [limits, wait, unread], name);
  const at = answer.limits.filter((one) => one.resetsAtMs !== undefined);
  for (const one of at) {
    const ms = Number(argsOf([one])[3]);
    assert(ms === nowMs + one.resetMs || (one.resetMs === 0 && ms >= 1e11 && ms < nowMs), name);
  }
  assert.strictEqual(at.length, times, name);
}

const lines = [];
const unread = new Unread((line) => lines.push(line));
for (const seconds of [0, 1, 59, 60, 61]) {
  performance.now = () => 1_000 * seconds;
  unread.add(['x-ratelimit-reset: soon', 'x-ratelimit-remaining: many']);
  unread.add([]);
}
const said = (times) => `dripd: a header about a limit cannot be understood: it is passed over (${times} times): x-ratelimit-reset: soon`;
assert.deepStrictEqual([unread.count, lines], [10, [said(2), said(6)]]);
console.log(`${table.cases.length} cases`);
