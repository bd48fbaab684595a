// Requests to the door this page came from, with the token if there is one.

const KEPT = "dripd-token";

/** What the door refused, or that it did not answer (status 0). */
export class Problem extends Error {
  constructor(status, error, words) {
    super(words);
    this.status = status;
    this.error = error;
  }
}

/** The token is kept for this tab alone, and is gone with it. */
export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set(text) {
    if (text) sessionStorage.setItem(KEPT, text);
    else sessionStorage.removeItem(KEPT);
    document.dispatchEvent(new Event("token"));
  },
};

/** Ask; the answer as it comes. */
export async function ask(method, path, { body, signal, given } = {}) {
  const headers = {};
  const bearer = given ?? token.get();
  if (bearer) headers.Authorization = `Bearer ${bearer}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
  } catch (why) {
    if (why.name === "AbortError") throw why;
    throw new Problem(0, "lost", "dripd does not answer");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, said.error ?? "failed", said.detail || said.title || `it failed with ${answer.status}`);
}

/** Ask for an object. */
export async function get(path, signal) {
  return (await ask("GET", path, { signal })).json();
}

/** Have something done. Replies what became of it. */
export async function send(method, path, body) {
  return (await ask(method, path, { body })).json();
}

/** The path of a bucket or a budget: its name is one part of it, whatever it holds. */
export function pathOf(kind, name) {
  return `/v1/${kind}s/${encodeURIComponent(name)}`;
}

/** Do something now and again until told to stop; not while nobody looks, and never twice at a time. */
export function every(ms, signal, step) {
  let timer = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) await step().catch(() => {});
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  document.addEventListener("visibilitychange", () => document.hidden || (timer && turn()), { signal });
  turn();
}
