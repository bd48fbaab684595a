// What is going on, once a second: one stream of events for all pages. It is read with fetch, so that the token goes along.

import { Problem, ask } from "./api.js";

const SECONDS = 900;
const CHANGES = 200;

// The door sends something every second, or a comment every 15: after this much silence the connection is dead.
const SILENCE_MS = 25_000;
const AGAIN_MS = [500, 1_000, 2_000, 4_000];

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

function become(change) {
  Object.assign(live.link, change);
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

function take(text) {
  let event = "", data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (Object.hasOwn(TAKE, event)) TAKE[event](JSON.parse(data));
}

async function listen(stop) {
  const answer = await ask("GET", "/v1/events", { signal: stop.signal });
  become({ state: "good", why: "" });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const dead = setTimeout(() => stop.abort(), SILENCE_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(dead));
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    parts.forEach(take);
  }
}

let current = new AbortController();

/** Listen for as long as the page is there; a lost stream is made again. */
export async function start() {
  let failures = 0;
  document.addEventListener("token", () => current.abort());
  addEventListener("online", () => wake());
  let wake = () => {};
  for (;;) {
    current = new AbortController();
    try {
      await listen(current);
      failures = 0;
      become({ state: "lost", why: "dripd ended the connection" });
    } catch (why) {
      if (why instanceof Problem && [401, 403].includes(why.status)) {
        become({ state: "refused", why: why.message });
        await new Promise((resolve) => document.addEventListener("token", resolve, { once: true }));
        continue;
      }
      if (live.link.state === "good") failures = 0;
      if (why.name !== "AbortError") become({ state: "lost", why: why.message ?? "the connection is lost" });
    }
    const pause = AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)];
    failures += 1;
    await new Promise((resolve) => {
      wake = resolve;
      setTimeout(resolve, pause);
    });
  }
}
