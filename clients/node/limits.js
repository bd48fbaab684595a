// How much more an API lets through, read from the headers of its answer: `RateLimit` and `RateLimit-Policy` (IETF draft, structured fields),
// and headers with a number each, whose names differ in one word: X-RateLimit-Remaining, x-ratelimit-remaining-tokens,
// anthropic-ratelimit-requests-remaining.
import { parseList } from 'structured-headers';

const MOST = 1e9; // jobs, or units of cost
const MOST_MS = 86_400_000; // a longer one is asked for again after a day
const REPORTS_MOST = 4;
const EPOCH_FROM = 1e9; // numbers from here on are seconds since 1970
const EPOCH_MS_FROM = 1e11; // and from here on milliseconds
const UNITS_MS = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1 };

// What is said of each limit: { remaining, resetMs, limit, units }. What cannot be understood is passed over.
export function readLimits(headers) {
  const all = typeof headers?.entries === 'function' ? [...headers.entries()] : Object.entries(headers ?? {});
  const of = Object.fromEntries(all.map(([name, value]) => [name.toLowerCase(), String(value)]));
  const least = new Map(); // by limit: those of a minute and of a day differ
  for (const one of [...structured(of), ...byName(of)]) {
    const key = `${one.units}/${one.limit}`;
    const known = least.get(key);
    const isLess = !known || one.remaining < known.remaining || (one.remaining === known.remaining && one.resetMs > known.resetMs);
    if (isLess && (known || least.size < REPORTS_MOST)) least.set(key, one);
  }
  return [...least.values()];
}

const within = (number, most) => Math.floor(Math.max(0, Math.min(number, most)));

const limitOf = (remaining, resetMs, limit, isCost) => ({
  remaining: within(remaining, MOST), resetMs: within(resetMs, MOST_MS), limit: limit > 0 ? Math.max(1, within(limit, MOST)) : undefined,
  units: isCost ? 'cost' : 'job',
});

function list(text) {
  try {
    return text ? parseList(text).map(([item, params]) => [String(item), params]) : [];
  } catch { // whatever is wrong with it
    return [];
  }
}

function* structured(of) {
  const quotas = new Map();
  for (const [name, params] of list(of['ratelimit-policy'])) {
    quotas.set(name, [params.get('q'), String(params.get('qu') ?? '').includes('token')]);
  }
  const text = of.ratelimit ?? '';
  const earlier = Object.fromEntries([...text.matchAll(/(limit|remaining|reset)=(\d+)/g)].map(([, key, value]) => [key, Number(value)]));
  if ('remaining' in earlier && 'reset' in earlier) {
    yield limitOf(earlier.remaining, 1_000 * earlier.reset, earlier.limit, false);
    return;
  }
  for (const [name, params] of list(text)) {
    const [quota, isCost] = quotas.get(name) ?? [undefined, false];
    const [remaining, reset] = [params.get('r'), params.get('t')];
    if (Number.isInteger(remaining) && Number.isInteger(reset)) yield limitOf(remaining, 1_000 * reset, quota, isCost);
  }
}

function* byName(of) {
  for (const [name, value] of Object.entries(of)) {
    if (!name.includes('remaining') || !/rate-?limit/.test(name)) continue;
    const [remaining, resetMs] = [number(value), ms(of[name.replace('remaining', 'reset')])];
    const limit = number((of[name.replace('remaining', 'limit')] ?? '').split(/[,;]/)[0]);
    if (remaining !== undefined && resetMs !== undefined) yield limitOf(remaining, resetMs, limit, name.includes('token'));
  }
}

function number(text) {
  const value = Number(text);
  return text?.trim() && Number.isFinite(value) ? value : undefined;
}

// Seconds, seconds or milliseconds since 1970, `6m0s`, or a time as in RFC 3339 or HTTP.
function ms(text) {
  const value = number(text);
  if (value !== undefined) {
    if (value < EPOCH_FROM) return 1_000 * value;
    return (value >= EPOCH_MS_FROM ? value : 1_000 * value) - Date.now();
  }
  if (/^(\d+(\.\d+)?(ms|h|m|s))+$/.test(text ?? '')) {
    return [...text.matchAll(/(\d+(?:\.\d+)?)(ms|h|m|s)/g)].reduce((sum, [, count, unit]) => sum + count * UNITS_MS[unit], 0);
  }
  const at = Date.parse(text ?? '');
  return Number.isNaN(at) ? undefined : at - Date.now();
}

// As arguments of drip_ack and drip_fail.
export function argsOf(limits, budget) {
  return limits.flatMap(({ remaining, resetMs, limit, units }) => [
    'REMAINING', String(remaining), 'RESET', String(resetMs), ...(limit ? ['LIMIT', String(limit)] : []), 'UNITS', units,
    ...(budget ? ['IN', budget] : []),
  ]);
}
