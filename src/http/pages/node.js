// The page of a bucket or of a budget: why it waits, its drip, what can be done, its chain, its waiting jobs.

import { every, get, isUnreachable, pathOf, token } from "./api.js";
import { actions } from "./actions.js";
import { h, name as named, put, say, shown } from "./dom.js";
import { drips } from "./drips.js";
import { brief, count, lasts, many } from "./format.js";

const JOBS_EVERY_MS = 3_000;

/** What lets nothing out, for a time that nobody knows. */
const STANDS = new Set(["paused", "refused", "held", "slot", "no-daemon", "wrong-type"]);

function tiles(kind, said) {
  const { status } = said, explanation = said.explanation ?? said, own = explanation.chain[0];
  // Where something else than its own rate holds it back, that alone says nothing.
  const due = explanation.due_in_us === null || STANDS.has(explanation.binds) ? "–" : explanation.due_in_us > 0 ? `in ${lasts(explanation.due_in_us)}`
    : explanation.binds === "share" ? "in its turn" : "now";
  const { route } = explanation;
  const out = () => route.to ? [[`in the list ${shown(route.to)}`, count(route.ready)]]
    : [["on its route: ready for workers", `${count(route.ready)} of ${count(route.limit)}`], ["on its route: with workers", count(route.pending)],
      ["its workers take per second", route.taken_per_second === null ? "–" : brief(route.taken_per_second)]];
  const all = kind === "bucket" ? [
    ["jobs waiting", `${brief(status.depth)} of ${brief(status.capacity)}`], ["next job leaves", status.depth ? due : "–"], ["rate", own.rate ?? "none"],
    ["failed jobs to retry", count(explanation.retries.waiting)], ...out(),
  ] : [["waiting for a share of it", count(explanation.waiting)], ["next job leaves", due], ["rate", own.rate ?? "none"]];
  if (explanation.delayed?.waiting > 0) all.push(["delayed jobs", count(explanation.delayed.waiting)]);
  if (own.slots) all.push(["slots taken", `${count(own.slots.taken)} of ${count(own.slots.of)}`]);
  return all.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)));
}

/** What else holds for a level of the chain. */
function more(level) {
  const all = [];
  if (level.refused) all.push(`refused: ${shown(level.refused)}`);
  if (level.paused) all.push("paused");
  if (level.closed) all.push("closed");
  if (level.slow_us) all.push(`slow for ${lasts(level.slow_us)}`);
  if (level.told) all.push(`told: ${level.told.left}${level.told.limit ? ` of ${level.told.limit}` : ""} left for ${lasts(level.told.reset_us)}`);
  if (level.credit) all.push(`${lasts(Math.abs(level.credit.us))} of ${level.credit.us < 0 ? "debt" : "credit"}: charged ${count(level.credit.price_percent)} % of the cost`);
  if (level.slots) all.push(`slots ${level.slots.taken} of ${level.slots.of}`);
  for (const quota of level.quotas) all.push(`quota ${count(quota.used)} of ${count(quota.count)}, ends in ${lasts(quota.ends_us)}`);
  if (level.share) all.push(`waits for a share of ${shown(level.share.of)}: ${count(level.share.ahead)} of ${count(level.share.waiting)} before it`);
  if (level.waiting) all.push(`${count(level.waiting)} waiting for a share of it`);
  return all.join(", ") || "–";
}

function policy(level) {
  const row = (one) => h("tr", {}, h("th", { scope: "row" }, one.key), h("td", {}, shown(one.value)), h("td", { class: "small" }, one.said));
  return h("table", {}, h("thead", {}, h("tr", {}, ["Key", "Value", "Where it comes from"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, level.policy.map(row)));
}

function chain(levels) {
  const link = (level, at) => (at === 0 ? named(level.name) : h("a", { href: `#/budget/${encodeURIComponent(level.name)}` }, named(level.name)));
  const row = (level, at) => h("tr", {}, h("th", { scope: "row" }, `${level.kind} `, link(level, at)), h("td", {}, level.rate ?? "–"),
    h("td", {}, level.due_in_us === null ? "–" : level.due_in_us > 0 ? `in ${lasts(level.due_in_us)}` : "now"), h("td", {}, more(level)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of its limits" },
    h("table", {}, h("thead", {}, h("tr", {}, ["Level", "Rate", "Next job", "Also"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, levels.map(row))));
}

function jobsCard(bucket, signal) {
  const state = h("p", { class: "soft small" }), list = h("ol", { class: "jobs" });
  const look = async () => {
    if (!token.get()) {
      put(list);
      return say(state, "Give a token that may read, and the first bytes of waiting jobs are shown.");
    }
    try {
      const said = await get(`${pathOf("bucket", bucket)}/jobs?limit=20`, signal);
      say(state, said.depth === 0 ? "No job waits." : `The next ${count(said.jobs.length)} of ${many(said.depth, "job")}, the first bytes of each.`);
      put(list, said.jobs.map((job) => h("li", {}, h("bdi", { class: "bytes" }, job.bytes === 0 ? "(empty)" : job.first), " ",
        h("span", { class: "soft small" }, `${job.cut ? "… " : ""}${many(job.bytes, "byte")}`))));
    } catch (why) {
      if (why.name !== "AbortError") say(state, shown(why.message));
    }
    return null;
  };
  document.addEventListener("token", look, { signal });
  every(JOBS_EVERY_MS, signal, look);
  return h("section", { class: "card", "aria-labelledby": "jobs" }, h("h2", { id: "jobs" }, "Waiting jobs"), state, list);
}

/** A name that no browser can ask for: the commands can. */
function unreachable(main, kind, name) {
  const of = kind === "budget" ? " --budget" : "";
  put(main, h("h1", {}, `${kind === "bucket" ? "Bucket" : "Budget"} `, named(name)), h("section", { class: "card" },
    h("p", {}, `A browser cannot ask for a ${kind} called “${name}”: in an address that means a folder, and browsers leave it out. Use these commands:`),
    h("p", {}, h("code", {}, `dripd explain ${name}${of}`)),
    ["pause", "resume", "set", "slow"].map((command) => h("p", {}, h("code", {}, `dripd ${command} ${name}${of}${command === "set" ? " rate=5/s" : command === "slow" ? " 30s" : ""}`)))));
}

function page(kind) {
  return (main, signal, name) => {
    if (isUnreachable(name)) return unreachable(main, kind, name);
    const binds = h("p", { class: "binds", "aria-live": "polite" }, "Loading…"), says = h("ul", { class: "says" });
    const figures = h("dl", { class: "tiles", "aria-label": "Figures" }), levels = h("div"), values = h("div");
    const drip = kind === "bucket" ? drips(name, signal) : null;
    const look = async () => {
      try {
        const said = await get(pathOf(kind, name), signal);
        const explanation = said.explanation ?? said, own = explanation.chain[0];
        const sentences = [explanation.says].flat();
        say(binds, sentences.at(-1) ?? "");
        put(says, sentences.slice(0, -1).map((words) => h("li", {}, words)));
        put(figures, tiles(kind, said));
        put(levels, chain(explanation.chain));
        if (values.dataset.said !== JSON.stringify(own.policy)) {
          values.dataset.said = JSON.stringify(own.policy);
          put(values, policy(own));
        }
        if (drip) await drip.look(said.status.count ? said.status.period_us / said.status.count : 0);
      } catch (why) {
        // What is not answered is told at the head of the page; what stands here is old then, and stays.
        if (why.name !== "AbortError" && (why.status !== 0 || !figures.hasChildNodes())) say(binds, shown(why.message));
      }
    };
    put(main, h("h1", {}, `${kind === "bucket" ? "Bucket" : "Budget"} `, named(name)),
      h("section", { class: "card", "aria-labelledby": "why" }, h("h2", { id: "why" }, "Why it waits"), binds, says), figures,
      drip?.card, actions(kind, name, signal, look),
      h("section", { class: "card", "aria-labelledby": "chain" }, h("h2", { id: "chain" }, "Its limits"), levels,
        h("details", {}, h("summary", {}, "All settings, and where each comes from"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of settings" }, values))),
      kind === "bucket" && jobsCard(name, signal));
    document.addEventListener("token", look, { signal });
    every(1_000, signal, look);
    return null;
  };
}

export const bucket = page("bucket");
export const budget = page("budget");
