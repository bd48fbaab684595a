// What is going on, once a second: one stream of events for all pages and tabs. It is read with fetch, so that the token goes along.

import { Problem, ask, token } from "./api.js";
import { share } from "./tabs.js";

const SECONDS = 900;
const CHANGES = 200;

// The door sends something every second, and where Redis does not answer a comment every 15: after more silence the connection is dead.
const SILENCE_MS = 10_000;
const SILENCE_WITHOUT_REDIS_MS = 20_000;
const AGAIN_MS = [500, 1_000, 2_000, 4_000];
const REFUSED_MS = 10_000;

/** Tells of `past`, `totals`, `changes` and `link`. */
export const live = new EventTarget();

/** The last totals, or null. */
live.totals = null;
/** Columns of numbers: seconds since 1970, dispatched, rejected, p50 and p99 in seconds, waiting. */
live.past = [[], [], [], [], [], []];
/** The last changes, the oldest first. */
live.changes = [];
/** Whether the stream is there: "connecting", "good", "lost", "refused"; why not; and why Redis does not answer. */
live.link = { state: "connecting", why: "", redis: "" };

function tell(what) {
  live.dispatchEvent(new Event(what));
}

let tellTabs = () => {};

/** It stands so with the connection now; the other tabs are told too. */
function become(change) {
  Object.assign(live.link, change);
  tellTabs({ link: live.link });
  tell("link");
}

function add(atMs, dispatched, rejected, p50, p99, waiting) {
  const row = [atMs / 1_000, dispatched, rejected, p50 === null ? null : p50 / 1e6, p99 === null ? null : p99 / 1e6, waiting];
  if (row[0] <= (live.past[0].at(-1) ?? 0)) return;
  live.past.forEach((column, at) => {
    column.push(row[at]);
    if (column.length > SECONDS) column.shift();
  });
}

const TAKE = {
  history({ rows }) {
    live.past = [[], [], [], [], [], []];
    for (const row of rows) add(...row);
    tell("past");
  },
  totals(now) {
    live.totals = now;
    add(now.at_ms, now.dispatched_per_s, now.rejected_per_s, now.late_p50_us, now.late_p99_us, now.waiting);
    tell("totals");
  },
  changes(changes) {
    const known = new Set(live.changes.map((change) => change.id));
    live.changes = [...live.changes, ...changes.filter((change) => !known.has(change.id))].slice(-CHANGES);
    tell("changes");
  },
  redis({ up, why }) {
    become({ redis: up ? "" : why });
  },
};

/** What another tab tells: an event that it read, how its connection stands, or all that it knows. */
function hear({ event, data, link, all }) {
  if (event) TAKE[event](data);
  if (link) become(link);
  if (!all) return;
  live.past = all.past;
  live.totals = all.totals;
  tell("past");
  if (live.totals) tell("totals");
  TAKE.changes(all.changes);
  become(all.link);
}

function take(text) {
  let event = "", data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!Object.hasOwn(TAKE, event)) return;
  const said = JSON.parse(data);
  tellTabs({ event, data: said });
  TAKE[event](said);
}

/** Read the stream until it ends. */
async function listen(signal) {
  const stop = new AbortController();
  const end = () => stop.abort();
  let silence = 0, isSilent = false;
  const wait = () => {
    clearTimeout(silence);
    const most = live.link.redis ? SILENCE_WITHOUT_REDIS_MS : SILENCE_MS;
    silence = setTimeout(() => {
      isSilent = true;
      stop.abort();
    }, most);
  };
  const read = async (answer) => {
    become({ state: "good", why: "" });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      wait();
      tellTabs({ isAlive: true });
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      parts.forEach(take);
    }
  };
  signal.addEventListener("abort", end, { once: true });
  wait();
  try {
    await ask("GET", "/v1/events", { signal: stop.signal, within: 0, read });
  } catch (why) {
    throw isSilent ? new Problem(0, "lost", "dripd does not answer") : why;
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", end);
  }
}

/** Wait, but not longer than until the network is there again, or until told to stop. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const end = () => (clearTimeout(timer), resolve());
    signal.addEventListener("abort", end, { once: true });
    addEventListener("online", end, { once: true, signal });
  });
}

/** Listen until told to stop; a lost stream is made again. */
async function lead(signal, tellOthers) {
  let failures = 0;
  tellTabs = tellOthers;
  while (!signal.aborted) {
    let again = AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)];
    try {
      await listen(signal);
      // It ends when dripd is reloaded, too: only if it does not come back it is lost.
      [failures, again] = [1, AGAIN_MS[0]];
    } catch (why) {
      if (signal.aborted) break;
      const isRefused = why instanceof Problem && [401, 403].includes(why.status);
      if (isRefused) again = REFUSED_MS;
      failures = live.link.state === "good" ? 1 : failures + 1;
      become({ state: isRefused ? "refused" : "lost", why: why.message ?? "" });
    }
    await pause(again, signal);
  }
  tellTabs = () => {};
}

const isSeen = () => new Promise((resolve) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    resolve();
  };
  document.addEventListener("visibilitychange", look);
  look();
});

/** Know what is going on for as long as the page is there and in view. */
export async function start() {
  const all = () => ({ past: live.past, totals: live.totals, changes: live.changes, link: live.link });
  for (;;) {
    await isSeen();
    const view = new AbortController();
    const leave = () => view.abort();
    document.addEventListener("visibilitychange", () => document.hidden && leave(), { signal: view.signal });
    document.addEventListener("token", leave, { signal: view.signal });
    become({ state: "connecting", why: "" });
    await share(token.get(), view.signal, { lead, hear, all }).catch((why) => become({ state: "lost", why: why.message }));
    if (!view.signal.aborted) await pause(AGAIN_MS.at(-1), view.signal);
    leave();
  }
}
