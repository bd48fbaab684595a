// Requests to the door this page came from, with the token if there is one.

const KEPT = "dripd-token";

/** How long an answer may take. The door itself waits at most 5 seconds for Redis, and 3 for a new connection to it. */
const ANSWER_MS = 12_000;

/** How long what looks through all dead letters may take. */
export const SCAN_MS = 120_000;

/** What the door refused, or that it did not answer (status 0). */
export class Problem extends Error {
  constructor(status, error, words) {
    super(words);
    this.status = status;
    this.error = error;
  }
}

/** Paths that the token does not open, and that are open without one. */
const openWithout = new Set();

/** The token is kept for this tab alone, and is gone with it. */
export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set(text) {
    if (text) sessionStorage.setItem(KEPT, text);
    else sessionStorage.removeItem(KEPT);
    openWithout.clear();
    document.dispatchEvent(new Event("token"));
  },
};

/** A request that ends in time (0: whenever it wants), and earlier where `signal` says so. */
function bound(signal, within) {
  const stop = new AbortController();
  const end = () => stop.abort();
  const late = within && setTimeout(end, within);
  if (signal?.aborted) end();
  signal?.addEventListener("abort", end, { once: true });
  return {
    signal: stop.signal,
    done() {
      clearTimeout(late);
      signal?.removeEventListener("abort", end);
    },
  };
}

/** What an answer that never came is called. */
function unanswered(why, signal, ended) {
  if (why instanceof Problem) return why;
  if (signal?.aborted) return new DOMException("told to stop", "AbortError");
  return new Problem(0, "lost", ended.aborted ? "dripd did not answer in time" : "dripd does not answer");
}

async function refusal(answer) {
  const said = await answer.json().catch(() => ({}));
  return new Problem(answer.status, said.error ?? "failed", said.detail || said.title || `it failed with ${answer.status}`);
}

/**
 * Ask; `read` makes of the answer what is replied, as long as it takes. A token may open less than none does, for it may be for some buckets
 * only: what it may not read is read without it, where that is open.
 */
export async function ask(method, path, { body, signal, given, within = ANSWER_MS, read = (answer) => answer } = {}) {
  const time = bound(signal, within), place = path.split("?")[0];
  const once = (bearer) => {
    const headers = {};
    if (bearer) headers.Authorization = `Bearer ${bearer}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: time.signal, cache: "no-store" });
  };
  try {
    const bearer = given ?? (method === "GET" && openWithout.has(place) ? "" : token.get());
    const answer = await once(bearer);
    if (answer.ok) return await read(answer);
    const problem = await refusal(answer);
    if (method !== "GET" || problem.status !== 403 || !bearer || given !== undefined) throw problem;
    const without = await once("");
    if (!without.ok) throw problem;
    openWithout.add(place);
    return await read(without);
  } catch (why) {
    throw unanswered(why, signal, time.signal);
  } finally {
    time.done();
  }
}

const json = (answer) => answer.json();

/** Ask for an object. */
export const get = (path, signal, within) => ask("GET", path, { signal, within, read: json });

/** Have something done. Replies what became of it. */
export async function send(method, path, body, within) {
  try {
    return await ask(method, path, { body, within, read: json });
  } catch (why) {
    if (why.status === 0 && !body?.dry_run) why.message += ": it is not known whether it was done";
    throw why;
  }
}

/** The path of a bucket or a budget: its name is one part of it, whatever it holds. */
export function pathOf(kind, name) {
  return `/v1/${kind}s/${encodeURIComponent(name)}`;
}

/** A browser takes these parts out of any address, however they are written. */
export const isUnreachable = (name) => name === "." || name === "..";

/** Do something now and again until told to stop; not while nobody looks, and never twice at a time. */
export function every(ms, signal, step) {
  let timer = 0, isBusy = false;
  const turn = async () => {
    if (isBusy) return;
    isBusy = true;
    clearTimeout(timer);
    if (!document.hidden) await step().catch(() => {});
    isBusy = false;
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => document.hidden || turn(), { signal });
  turn();
}
