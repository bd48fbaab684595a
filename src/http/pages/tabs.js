// One tab for all: a browser opens six connections to a host and no more, so a stream of events in each tab would leave the seventh
// without an answer. Of those that are in view and have the same token one listens, and tells the others.

/** When a tab that listens was silent for so long, another one takes over. It tells something at least every 15 seconds. */
const SILENCE_MS = 20_000;

/** What tabs with this token are called. The token itself is told to nobody. */
async function nameOf(token) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token));
  return `dripd-${Array.from(new Uint8Array(digest).subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Until told to stop: `lead(signal, tell)` where it is this tab's turn, and `hear(news)` what another one tells; `all()` is told to one who
 * is new. Browsers have locks on HTTPS and on this machine only: elsewhere each tab in view listens for itself.
 */
export async function share(token, signal, { lead, hear, all }) {
  if (!navigator.locks) return lead(signal, () => {});
  const name = await nameOf(token ?? "");
  if (signal.aborted) return null;
  const news = new BroadcastChannel(name);
  const tell = (what) => news.postMessage(what);
  let isLeading = false, silence = 0, turn = new AbortController();

  const inTurn = (way) => navigator.locks.request(name, way, async () => {
    if (signal.aborted) return;
    clearTimeout(silence);
    isLeading = true;
    turn = new AbortController();
    await lead(turn.signal, tell);
  }).catch(() => {}).finally(() => {
    turn.abort(); // another tab took over, for this one was silent
    isLeading = false;
  });
  const wait = () => {
    clearTimeout(silence);
    if (!signal.aborted) silence = setTimeout(() => inLine.abort(), SILENCE_MS);
  };
  news.onmessage = ({ data }) => {
    if (data.isNew) return isLeading && tell({ all: all() });
    if (isLeading) return null;
    wait();
    return hear(data);
  };

  let inLine = new AbortController();
  const leave = () => (inLine.abort(), turn.abort());
  signal.addEventListener("abort", leave, { once: true });
  while (!signal.aborted) {
    inLine = new AbortController();
    wait();
    tell({ isNew: true });
    await inTurn({ signal: inLine.signal });
    // Out of the line without a turn: the tab that has it is silent.
    if (inLine.signal.aborted && !signal.aborted) await inTurn({ steal: true });
  }
  clearTimeout(silence);
  news.close();
  return null;
}
