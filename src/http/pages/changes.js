// What was slowed or changed, by whom and why: a time line, and what of it is in force now.

import { ask, every } from "./api.js";
import { h, name, put, say, shown } from "./dom.js";
import { lasts, moment } from "./format.js";
import { live } from "./live.js";

const WORDS = {
  set: "set", unset: "taken back", pause: "paused", resume: "resumed", close: "closed", open: "opened", slow: "slowed down", purge: "purged",
  "dead-retry": "dead letters put back", "dead-drop": "dead letters dropped",
};

function subject(row) {
  const text = row.match ?? "";
  if (!text) return "all";
  const is = row.budget ? "budget" : "bucket";
  if (row.glob || /[*?[\\]/.test(text) || row.what?.startsWith("dead")) return name(text);
  return h("a", { href: `#/${is}/${encodeURIComponent(text)}` }, name(text));
}

/** Times as they are kept, `for 7200s`, in a larger unit; rates such as 1/500ms stay. */
const inUnits = (text) => shown(text).replace(/(^| )(\d+)(ms|s)\b/g, (_, before, n, unit) => before + lasts(n * (unit === "s" ? 1_000_000 : 1_000)));

/** What the word for the change says already. */
const isSaid = (text) => /^(pause|close)=yes$/.test(text);

function entry(change) {
  const isOver = change.what === "slow" && change.after === "over";
  const words = isOver ? "slow-down over" : WORDS[change.what] ?? shown(change.what);
  const kind = change.what === "slow" ? "is-slow" : ["pause", "close", "purge", "dead-drop"].includes(change.what) ? "is-bad" : "";
  return h("li", { class: kind },
    h("p", {}, h("time", { datetime: new Date(change.at_ms).toISOString() }, moment(change.at_ms)), " ", h("strong", {}, words), " ",
      change.budget ? "budget " : "", subject(change)),
    h("p", { class: "small" }, isSaid(change.after) ? "" : change.before ? `before: ${inUnits(change.before)}` : "", change.before && change.after && !isSaid(change.after) ? " → " : "",
      change.after && !isOver && !isSaid(change.after) ? `after: ${inUnits(change.after)}` : ""),
    h("p", { class: "small soft" }, `by ${change.by ? shown(change.by) : "the service that is called"}`, change.user && change.user !== "default" ? `, Redis user ${shown(change.user)}` : "",
      change.reason ? `: ${shown(change.reason)}` : ""));
}

const KEYS = { pause: "paused", close: "closed", "slow-down": "slowed down", "told-limit": "told" };

function setting(row) {
  if (!Object.hasOwn(KEYS, row.key)) return row.key + (row.value ? ` = ${shown(row.value)}` : "");
  return KEYS[row.key] + (row.value && row.value !== "yes" ? `: ${inUnits(row.value)}` : "");
}

function settingsRow(row) {
  const at = (text) => (text ? moment(Date.parse(text)) : "no end set");
  return h("tr", {}, h("th", { scope: "row" }, row.budget ? "budget " : "", subject(row)), h("td", {}, setting(row)),
    h("td", { class: "wide" }, at(row.since)), h("td", {}, at(row.until)), h("td", {}, shown(row.by), row.reason ? `: ${shown(row.reason)}` : ""));
}

/** What is set is shown of so many names and globs. */
const NAMES = 200;

/** What is set, and whether there is more of it. */
const read = async (answer) => ({ rows: await answer.json(), isMore: answer.headers.get("Drip-More") === "true" });

/** Show it until the page is left. */
export function changes(main, signal) {
  const list = h("ol", { class: "time-line" }), none = h("p", { class: "soft" }, "Loading…"), body = h("tbody"), state = h("p", { class: "soft small" }, "Loading…");
  const heads = ["Bucket or budget", "Setting", "Since", "Until", "Set by, and why"];
  const drawNone = () => {
    none.hidden = live.changes.length > 0;
    say(none, live.link.state === "good" ? "Nothing was changed yet." : "Loading…");
  };
  const draw = () => {
    drawNone();
    put(list, live.changes.toReversed().map(entry));
  };
  live.addEventListener("changes", draw, { signal });
  live.addEventListener("link", drawNone, { signal });
  draw();
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col", class: text === "Since" ? "wide" : "" }, text)))), body);
  put(main, h("h1", {}, "Changes"),
    h("section", { class: "card", "aria-labelledby": "now" }, h("h2", { id: "now" }, "In force now"), state,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of what is set" }, table)),
    h("section", { class: "card", "aria-labelledby": "then" }, h("h2", { id: "then" }, "What happened, newest first"), none, list));
  let last = "";
  every(2_000, signal, async () => {
    try {
      const { rows, isMore } = await ask("GET", `/v1/settings?limit=${NAMES}`, { signal, read });
      say(state, rows.length === 0 ? "Nothing is set, paused, closed or slowed down: the configuration file holds."
        : isMore ? `Only the first ${NAMES} names and globs are shown. The command “dripd settings” lists all of them.` : "");
      const now = JSON.stringify(rows);
      table.hidden = rows.length === 0;
      if (now !== last) put(body, rows.map(settingsRow));
      last = now;
    } catch (why) {
      if (why.name !== "AbortError") say(state, shown(why.message));
    }
  });
}
