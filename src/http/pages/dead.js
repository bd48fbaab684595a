// Dead letters: shown by page, and put back or dropped: exactly those that the filter found when they were counted.

import { SCAN_MS, get, send, token } from "./api.js";
import { confirm, tell } from "./dialog.js";
import { field, h, name, put, say, shown, shownBytes } from "./dom.js";
import { lasts, many, moment } from "./format.js";

const PAGE = 50;
const FIRST = 300;

const FIELDS = [["bucket", "Bucket", "a name or a glob: sms:*"], ["reason", "Reason", "a glob: *429*"], ["before", "Died before", "2h, or 2026-05-01T12:00:00Z"]];

/** What the filter says in words. */
function inWords(filter) {
  const parts = Object.entries(filter).map(([key, value]) => `${key} ${shown(value)}`);
  return parts.length ? `with ${parts.join(", ")}` : "of all buckets";
}

function text(plain, base64) {
  if (plain !== null && plain !== undefined) return shown(plain);
  return shownBytes(Uint8Array.from(atob(base64 ?? ""), (c) => c.charCodeAt(0)).subarray(0, FIRST));
}

/** Put back or drop what a filter finds. The number is found and shown first; nothing that died after that is touched. */
async function change(act, filter, words, signal, again) {
  const verb = act === "retry" ? "Put back" : "Drop", path = `/v1/dead/${act}`;
  const isAll = Object.keys(filter).length === 0;
  let count;
  try {
    count = await send("POST", path, { ...filter, dry_run: true }, SCAN_MS);
  } catch (why) {
    return tell(shown(why.message));
  }
  if (signal.aborted) return null;
  if (count.matched === 0) return tell("No dead letter matches.");
  const busy = Object.entries(count.buckets).map(([bucket, { letters, busy_ms }]) => `“${shown(bucket)}” is busy with ${many(letters, "job")} for ${lasts(busy_ms * 1_000)}`);
  const more = busy.length > 5 ? `, and ${busy.length - 5} more buckets` : "";
  const done = await confirm({
    title: `${verb} ${many(count.matched, "dead letter")}?`,
    words: [`They are those ${words}.`, act === "retry" ? `Each goes ahead of the queue of its bucket, as a first attempt. ${busy.slice(0, 5).join("; ")}${more}.` : "They are deleted for good."],
    go: `${verb} ${many(count.matched, "dead letter")}`, isBad: act === "drop",
    act: async () => {
      const said = await send("POST", path, { ...filter, up_to: count.up_to, ...(isAll ? { all: true } : {}) }, SCAN_MS);
      const n = said.put_back ?? said.dropped ?? 0;
      return `${many(n, "dead letter")} ${act === "retry" ? "put back" : "dropped"}.${said.why ? ` ${shown(said.why)}` : ""}`;
    },
  });
  if (done) {
    tell(done);
    again();
  }
  return null;
}

/** Show it until the page is left. */
export function dead(main, signal) {
  const inputs = FIELDS.map(([id, , hint]) => h("input", { id: `f-${id}`, name: id, placeholder: hint, autocomplete: "off", spellcheck: "false" }));
  const state = h("p", { class: "soft small", role: "status" }), body = h("tbody");
  const next = h("button", { type: "button", hidden: true }, "Show more");
  const [retry, drop] = [["retry", "Put back all that match…"], ["drop", "Drop all that match…"]].map(([act, words]) =>
    h("button", { type: "button", onclick: () => all(act) }, words));
  let filter = {}, after = null, shownSoFar = 0;
  // One look at a time: what an earlier one finds is not shown any more, for it may be about another filter.
  let looking = new AbortController(), isLooking = false;

  const enable = (isOn) => [retry, drop, next].forEach((button) => (button.disabled = !isOn));
  const all = async (act) => {
    enable(false); // one question at a time
    await change(act, filter, inWords(filter), signal, look);
    if (!isLooking) enable(true);
  };
  const row = (letter) => {
    const one = { id: letter.entry }, words = `in the entry ${letter.entry}`;
    const button = (act, label) => h("button", { type: "button", "aria-label": `${label} ${letter.entry}`, onclick: () => change(act, one, words, signal, look) }, `${label}…`);
    const bucket = letter.bucket ?? null, job = text(letter.job, letter.job_base64);
    return h("tr", {}, h("th", { scope: "row" }, bucket === null ? text(null, letter.bucket_base64) : h("a", { href: `#/bucket/${encodeURIComponent(bucket)}` }, name(bucket))),
      h("td", {}, moment(Date.parse(letter.at))), h("td", { class: "n wide" }, String(letter.attempt ?? "–")), h("td", { class: "reason" }, text(letter.reason, letter.reason_base64)),
      h("td", { class: "job" }, h("bdi", { class: "bytes" }, job.slice(0, FIRST)), job.length > FIRST ? "… " : " ", h("span", { class: "soft small" }, many(letter.bytes ?? 0, "byte"))),
      h("td", { class: "acts" }, button("retry", "Put back"), " ", button("drop", "Drop")));
  };

  const page = async () => {
    looking.abort();
    const mine = (looking = new AbortController());
    isLooking = false;
    enable(false);
    if (!token.get()) {
      put(body);
      next.hidden = true;
      return say(state, "Dead letters show jobs: give a token that may read to see them, and one that may operate to put them back or drop them.");
    }
    isLooking = true;
    say(state, `Looking for dead letters ${inWords(filter)}…`);
    const query = new URLSearchParams({ ...filter, limit: PAGE, ...(after ? { after } : {}) });
    try {
      const said = await get(`/v1/dead?${query}`, mine.signal, SCAN_MS);
      if (mine.signal.aborted) return null;
      const hadFocus = body.contains(document.activeElement);
      if (!after) put(body);
      if (hadFocus) region.focus(); // the row that it was in may be gone
      body.append(...said.letters.map(row));
      shownSoFar += said.letters.length;
      after = said.next;
      next.hidden = !after;
      enable(true);
      say(state, `${many(shownSoFar, "dead letter")} ${inWords(filter)} shown, the oldest first${after ? "; there are more" : ""}.`);
    } catch (why) {
      if (mine.signal.aborted) return null;
      next.disabled = false; // it may be tried again
      say(state, shown(why.message));
    }
    isLooking = false;
    return null;
  };
  const look = () => {
    after = null;
    shownSoFar = 0;
    return page();
  };
  signal.addEventListener("abort", () => looking.abort());
  next.addEventListener("click", page);
  document.addEventListener("token", look, { signal });
  const form = h("form", {
    class: "row",
    onsubmit: (event) => {
      event.preventDefault();
      filter = Object.fromEntries(inputs.filter((input) => input.value.trim()).map((input) => [input.name, input.value.trim()]));
      put(body);
      next.hidden = true;
      look();
    },
  }, FIELDS.map(([, label], at) => field(label, inputs[at])), h("button", { type: "submit" }, "Show"));
  const heads = ["Bucket", "Died", "Attempts", "Reason", "Job", "Actions"];
  const region = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of dead letters" },
    h("table", { class: "letters" }, h("thead", {}, h("tr", {}, heads.map((words, at) => h("th", { scope: "col", class: at === 2 ? "n wide" : "" }, words)))), body));
  put(main, h("h1", {}, "Dead letters"), h("section", { class: "card", "aria-label": "Dead letters" }, form, state, h("div", { class: "row" }, retry, drop), region, next));
  look();
}
