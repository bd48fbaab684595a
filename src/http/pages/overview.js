// The first page: totals, charts, and the buckets that come first.

import { every, get } from "./api.js";
import { charts } from "./charts.js";
import { field, h, name, put, say, shown } from "./dom.js";
import { ago, brief, count, lasts, many, rate, why } from "./format.js";
import { live } from "./live.js";

const TILES = [
  ["dispatched_per_s", "jobs dispatched per second"], ["rejected_per_s", "jobs rejected per second", (n) => n > 0], ["waiting", "buckets with work"],
  ["share", "waiting for a share of a budget"], ["slots", "waiting for a free slot"], ["held", "waiting for workers", (n) => n > 0], ["paused", "paused"],
  ["refused", "refused: budget not found", (n) => n > 0], ["retrying", "buckets with failed or delayed jobs"], ["delayed", "jobs delayed until their time"], ["dead", "dead letters"],
  ["daemons", "daemons running", (n) => n === 0],
];

function tiles(signal) {
  const places = TILES.map(([, label]) => ({ box: h("div", {}, h("dt", {}, label)), value: h("dd", {}, "–") }));
  places.forEach(({ box, value }) => box.append(value));
  const draw = () => {
    if (!live.totals) return;
    TILES.forEach(([key, , isBad], at) => {
      const n = live.totals[key];
      say(places[at].value, brief(n));
      places[at].box.classList.toggle("is-bad", isBad?.(n) ?? false);
    });
  };
  live.addEventListener("totals", draw, { signal });
  draw();
  return h("dl", { class: "tiles", "aria-label": "Totals" }, places.map(({ box }) => box));
}

const ORDERS = [["empty", "longest until empty"], ["depth", "most jobs waiting"], ["rejected", "most rejected lately"], ["late", "most late"]];

/** Where nothing leaves at all, nobody knows when a bucket is empty. */
const STANDS = new Set(["paused", "paused-above", "refused", "held", "wrong-type"]);

/** So many are ranked by each order. */
const KEPT = 1_000;

/** A word is looked for anywhere in a name; a glob stays one. */
const isGlob = (text) => /[*?[\\]/.test(text);
const glob = (text) => (isGlob(text) ? text : `*${text}*`);

/** A row of the table. It stays where it is and only what changed of it is drawn: a thousand of them are. */
function makeRow() {
  const link = h("a");
  const bar = h("i");
  const box = h("span", { class: "bar", "aria-hidden": "true" }, bar);
  const depth = h("span");
  const [empty, speed, late, rejected, waits] = ["n", "n wide", "n wide", "n wide", ""].map((kind) => h("td", { class: kind }));
  const element = h("tr", {}, h("th", { scope: "row" }, link), h("td", { class: "n" }, depth, box), empty, speed, late, rejected, waits);
  let bucket = null;
  return {
    element,
    draw(row) {
      if (bucket !== row.bucket) {
        bucket = row.bucket;
        put(link, name(bucket));
        link.href = `#/bucket/${encodeURIComponent(bucket)}`;
      }
      const part = Math.min(1, row.depth / Math.max(1, row.capacity));
      bar.style.width = `${part * 100}%`;
      box.classList.toggle("is-bad", part >= 1);
      say(depth, `${brief(row.depth)} of ${brief(row.capacity)}`);
      say(empty, row.empty_in_ms && !STANDS.has(row.why?.word) ? lasts(row.empty_in_ms * 1_000) : "–");
      say(speed, rate(row.count, row.period_us));
      say(late, row.late_us ? lasts(row.late_us) : "–");
      say(rejected, row.rejected ? brief(row.rejected) : "–");
      say(waits, shown(why(row, row.bucket)) + (row.closed_by ? ", closed" : ""));
    },
  };
}

function top(signal) {
  const by = h("select", { id: "by" }, ORDERS.map(([value, text]) => h("option", { value }, text)));
  const only = h("input", { id: "match", type: "search", placeholder: "name, or a glob: sms:*", autocomplete: "off", spellcheck: "false" });
  const limit = h("select", { id: "limit" }, [100, 1_000].map((n) => h("option", { value: n }, count(n))));
  const state = h("p", { class: "soft small", id: "as-of" }, "Loading…");
  const direct = h("p", { class: "small", hidden: true });
  const body = h("tbody");
  const heads = ["Bucket", "Jobs", "Empty in", "Rate", "Late", "Rejected", "Why it waits"];
  const kinds = ["", "n", "n", "n wide", "n wide", "n wide", ""];
  const table = h("table", { "aria-describedby": "as-of" }, h("caption", { hidden: true }, "Buckets"),
    h("thead", {}, h("tr", {}, heads.map((text, at) => h("th", { scope: "col", class: kinds[at] }, text)))), body);
  const rows = [];
  let asked = 0;
  // The ranking knows the first thousand of each order; a page can be opened by any name.
  const offer = () => {
    const text = only.value.trim();
    direct.hidden = !text || isGlob(text);
    if (!direct.hidden) put(direct, h("a", { href: `#/bucket/${encodeURIComponent(text)}` }, "Open the bucket called ", name(text)));
  };
  const look = async () => {
    const query = new URLSearchParams({ by: by.value, limit: limit.value, now: "true" });
    if (only.value) query.set("match", glob(only.value));
    const number = (asked += 1);
    try {
      const found = await get(`/v1/buckets?${query}`, signal);
      if (number !== asked) return;
      while (rows.length < found.rows.length) rows.push(makeRow());
      found.rows.forEach((row, at) => rows[at].draw(row));
      if (body.childElementCount !== found.rows.length) put(body, rows.slice(0, found.rows.length).map((row) => row.element));
      say(state, words(found));
    } catch (why) {
      if (why.name !== "AbortError" && number === asked) say(state, shown(why.message));
    }
  };
  const words = (found) => {
    if (found.as_of === null) return "The buckets are being ranked for the first time.";
    const among = only.value && found.buckets > KEPT ? `Among the first ${count(KEPT)}: ` : "";
    const some = found.rows.length === 0 ? (only.value ? `${among}none matches. ` : "No bucket has work. ")
      : `${among}${count(found.rows.length)} of ${many(found.buckets, "bucket")} with work. `;
    return `${some}Ranked ${ago(found.age_ms)}; the first 64 as they stand now. “Empty in” is how long the jobs take at the rate of the bucket alone.`;
  };
  let typing = 0;
  by.addEventListener("change", look);
  limit.addEventListener("change", look);
  only.addEventListener("input", () => {
    offer();
    clearTimeout(typing);
    typing = setTimeout(look, 150);
  });
  every(2_000, signal, look);
  return h("section", { class: "card", "aria-labelledby": "top-title" }, h("h2", { id: "top-title" }, "Buckets"),
    h("form", { class: "row", onsubmit: (event) => event.preventDefault() },
      [["Order", by], ["Filter", only], ["At most", limit]].map(([text, control]) => field(text, control))),
    direct, state, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of buckets" }, table));
}

/** How far the workers of each route are behind, a line each. Nothing where no route was ever used. */
function routes(signal) {
  const list = h("ul");
  const line = (one) => {
    const parts = [one.age_us ? `${count(one.undelivered)} undelivered, the oldest for ${lasts(one.age_us)}` : `${count(one.undelivered)} undelivered`, `limit ${count(one.limit)}`];
    if (one.taken_per_second !== null) parts.push(`${brief(one.taken_per_second)} taken per second`);
    if (!one.to) parts.push(`${count(one.pending)} with ${many(one.workers, "worker")}`);
    if (one.held) parts.push(`${many(one.held, "bucket")} held`);
    const bad = one.wrong ?? one.says;
    return h("li", {}, name(one.route), one.to ? [" into ", name(one.to)] : [], `: ${parts.join(", ")}`, bad ? h("p", { class: "is-bad small" }, shown(bad)) : []);
  };
  const card = h("section", { class: "card", "aria-labelledby": "routes-title", hidden: true }, h("h2", { id: "routes-title" }, "Routes and their workers"), list);
  every(2_000, signal, async () => {
    try {
      const found = await get("/v1/routes", signal);
      put(list, found.map(line));
      card.hidden = found.length === 0;
    } catch (why) {
      if (why.name !== "AbortError") card.hidden = true; // the line at the top says why nothing is known
    }
  });
  return card;
}

/** Show it until the page is left. */
export function overview(main, signal) {
  put(main, h("h1", {}, "Overview"), tiles(signal), charts(signal), routes(signal), top(signal));
}
