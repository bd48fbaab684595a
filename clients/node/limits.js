// How much more an API lets through, read from the headers of its answer: `RateLimit` and `RateLimit-Policy` (IETF draft, structured fields),
// headers with a number each, whose names differ in one word (X-RateLimit-Remaining, x-ratelimit-remaining-tokens,
// anthropic-ratelimit-requests-remaining), and Retry-After. ../limit-headers.json has what the readers of dripd make of each form.
import { parseDictionary, parseList, Token } from 'structured-headers';

const MOST = 1e9; // jobs, or units of cost
const MOST_MS = 86_400_000; // a longer one is asked for again after a day
const REPORTS_MOST = 4;
const EPOCH_FROM = 1e9; // numbers from here on are seconds since 1970
const EPOCH_MS_FROM = 1e11; // from here on milliseconds
const EPOCH_MS_TO = 1e14; // and from here on nothing
const UNITS_MS = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1_000, ms: 1, us: 0.001 };
const SPAN = /^(?:pt)?((?:\d+(?:\.\d+)?(?:ms|us|d|h|m|s))+)$/; // 6m0s, PT30S
const RFC_3339 = /^(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/;
const TEXT_MOST = 200; // of a header in the log
const LOG_EVERY_MS = 60_000;

// What the headers of an answer say: { limits: { remaining, resetMs, limit, units } of each limit, waitMs: how long a caller that was refused
// is to wait (0: they do not say), unread: headers that cannot be understood }.
export function readLimits(headers, nowMs = Date.now()) {
  const all = typeof headers?.entries === 'function' ? [...headers.entries()] : Object.entries(headers ?? {});
  const of = new Map();
  for (const [given, value] of all.flatMap(([name, values]) => [values].flat().map((one) => [name, one]))) {
    const name = given.toLowerCase();
    of.set(name, of.has(name) ? `${of.get(name)}, ${value}` : String(value));
  }
  const reader = new Reader(of, nowMs);
  const least = new Map(); // by limit: those of a minute and of a day differ
  for (const one of [...reader.structured(), ...reader.byName()]) {
    const key = `${one.units}/${one.limit}`;
    if (!least.has(key) || rank(one, least.get(key)) < 0) least.set(key, one);
  }
  const limits = [...least.values()].sort(rank).slice(0, REPORTS_MOST);
  const usedUp = limits.reduce((most, one) => (one.remaining === 0 ? Math.max(most, one.resetMs) : most), 0);
  const [finer, wait] = [reader.number('retry-after-ms'), reader.ms('retry-after')];
  return { limits, waitMs: whole(finer ?? 0, MOST_MS) || whole(wait ?? 0, MOST_MS) || usedUp, unread: reader.unread };
}

// Headers that could not be understood: they are counted, and one is logged once a minute.
export class Unread {
  count = 0;
  #counted = 0;
  #loggedMs = -Infinity;
  #log;

  constructor(log) {
    this.#log = log;
  }

  add(headers) {
    this.count += headers.length;
    if (headers.length === 0 || performance.now() < this.#loggedMs + LOG_EVERY_MS) return;
    this.#log(`dripd: a header about a limit cannot be understood: it is passed over (${this.count - this.#counted} times): ${headers[0]}`);
    [this.#counted, this.#loggedMs] = [this.count, performance.now()];
  }
}

// Of two limits the one with less left counts, or, of as much, the one that lasts longer.
const rank = (one, other) => one.remaining - other.remaining || other.resetMs - one.resetMs;
const cut = (number, most) => Math.max(0, Math.min(number, most));
const whole = (number, most) => Math.floor(cut(number, most) + 0.5);

// `fromMs` is this moment, where the other side said the time of its reset: resetsAtMs, since 1970.
const limitOf = (remaining, resetMs, limit, isCost, fromMs = undefined) => ({
  remaining: Math.floor(cut(remaining, MOST)), resetMs: whole(resetMs, MOST_MS), limit: limit >= 1 ? Math.floor(cut(limit, MOST)) : undefined,
  units: isCost ? 'cost' : 'job', resetsAtMs: fromMs === undefined ? undefined : Math.round(Math.max(EPOCH_MS_FROM, fromMs + Math.min(resetMs, MOST_MS))),
});

const nameOf = (item) => (typeof item === 'string' || item instanceof Token ? String(item) : undefined);
const numberOf = (item) => (typeof item === 'number' ? item : undefined);

class Reader {
  unread = [];

  constructor(of, nowMs) {
    Object.assign(this, { of, nowMs });
  }

  cannotRead(name) {
    this.unread.push(`${name}: ${this.of.get(name).trim().slice(0, TEXT_MOST)}`);
  }

  // A header by a parser; undefined: it is not there, or cannot be understood.
  parsed(name, parse) {
    if (!this.of.has(name)) return undefined;
    const value = parse(this.of.get(name));
    if (value === undefined) this.cannotRead(name);
    return value;
  }

  number(name, until = '') {
    return this.parsed(name, (text) => number(until ? text.split(until)[0] : text));
  }

  // How many milliseconds from now; less than 0: it is past.
  ms(name) {
    return this.parsed(name, (text) => ms(text.trim(), this.nowMs));
  }

  * structured() {
    const quotas = new Map();
    for (const [item, params] of this.parsed('ratelimit-policy', (text) => tried(parseList, text)) ?? []) {
      const [name, quota] = [nameOf(item), numberOf(params.get('q'))];
      if (name !== undefined && quota !== undefined) quotas.set(name, [quota, nameOf(params.get('qu')) ?? 'requests']);
    }
    if (!this.of.has('ratelimit')) return;
    const earlier = tried(parseDictionary, this.of.get('ratelimit'));
    if (earlier?.has('remaining')) {
      const [remaining, reset, limit] = ['remaining', 'reset', 'limit'].map((key) => numberOf(earlier.get(key)?.[0]));
      if (remaining !== undefined && reset !== undefined) yield limitOf(remaining, 1_000 * reset, limit, false);
      else if (earlier.has('reset')) this.cannotRead('ratelimit'); // without it nothing follows from what remains
      return;
    }
    let isRead = true;
    for (const [item, params] of this.parsed('ratelimit', (text) => tried(parseList, text)) ?? []) {
      const [remaining, reset] = [numberOf(params.get('r')), numberOf(params.get('t'))];
      if (Array.isArray(item) || remaining === undefined || (reset === undefined && params.has('t'))) {
        isRead = false;
      } else if (reset !== undefined) { // it may be left out
        const [quota, units] = quotas.get(nameOf(item)) ?? [undefined, 'requests'];
        if (units === 'requests' || units.includes('token')) yield limitOf(remaining, 1_000 * reset, quota, units.includes('token'));
      }
    }
    if (!isRead) this.cannotRead('ratelimit');
  }

  * byName() {
    for (const name of this.of.keys()) {
      const resetName = name.replaceAll('remaining', 'reset');
      if (resetName === name || !this.of.has(resetName) || !/rate-?limit/.test(name)) continue; // without a reset nothing follows
      const [remaining, resetMs] = [this.number(name), this.ms(resetName)];
      if (remaining === undefined || resetMs === undefined) continue;
      // `100, 100;w=60` in an earlier form of the draft: the first number is the limit.
      const [limit, isTime] = [this.number(name.replaceAll('remaining', 'limit'), /[,;]/), ms(this.of.get(resetName).trim(), 0) !== resetMs];
      yield limitOf(remaining, resetMs, limit, name.includes('token'), isTime ? this.nowMs : undefined);
    }
  }
}

function tried(parse, text) {
  try {
    return parse(text);
  } catch { // whatever is wrong with it
    return undefined;
  }
}

function number(text) {
  const value = /^-?\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : NaN;
  return Number.isFinite(value) ? value : undefined;
}

// Seconds, seconds or milliseconds since 1970, `6m0s`, or a time as in RFC 3339 or HTTP.
function ms(text, nowMs) {
  const value = number(text);
  if (value !== undefined) {
    if (value < EPOCH_FROM) return 1_000 * value;
    return value < EPOCH_MS_TO ? (value >= EPOCH_MS_FROM ? value : 1_000 * value) - nowMs : undefined;
  }
  const span = SPAN.exec(text.toLowerCase());
  if (span) return [...span[1].matchAll(/([\d.]+)([a-z]+)/g)].reduce((sum, [, count, unit]) => sum + count * UNITS_MS[unit], 0);
  const [, day, time, fraction = '', zone] = RFC_3339.exec(text) ?? [];
  if (day) {
    const [first, at] = [new Date(`${day}T00:00:00Z`), Date.parse(`${day}T${time}${fraction}${zone.toUpperCase()}`)];
    return Number.isNaN(at) || !first.toJSON()?.startsWith(day) ? undefined : at - nowMs; // a 30th of February is none
  }
  const at = new Date(text);
  return at.getTime() && at.toUTCString() === text ? at - nowMs : undefined;
}

// As arguments of drip_ack and drip_fail.
export function argsOf(limits, budget) {
  return limits.flatMap(({ remaining, resetMs, resetsAtMs, limit, units }) => [
    'REMAINING', String(remaining), 'RESET', String(resetsAtMs ?? resetMs), ...(limit ? ['LIMIT', String(limit)] : []), 'UNITS', units,
    ...(budget ? ['IN', budget] : []),
  ]);
}
