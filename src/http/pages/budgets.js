// The budgets as a tree: how much of each is used, who waits, and how one above is shared.

import { every, get } from "./api.js";
import { h, name, put, say, shown } from "./dom.js";
import { ago, count, lasts, many, number, percent, rate, why } from "./format.js";

/** The part of the budget above that one gets while all that are shown there wait. */
function share(row, siblings) {
  const all = siblings.reduce((sum, one) => sum + one.weight, 0);
  return row.parent && siblings.length > 1 ? `weight ${number(row.weight)}: ${percent(row.weight / all)} of ${shown(row.parent)} while all its neighbours have work` : null;
}

function bounds(row) {
  const all = [row.count ? rate(row.count, row.period_us) : "no rate"];
  if (row.slots) all.push(`slots ${count(row.slots.taken)} of ${count(row.slots.of)}`);
  if (row.quota) all.push(`quota ${count(row.quota.used)} of ${count(row.quota.of)}`);
  if (row.per_s !== null) all.push(`now ${number(row.per_s)}/s`);
  return all.join(" · ");
}

function node(row, siblings, children, known) {
  // What is measured in some seconds may be a little more than may be: jobs that were late leave together.
  const bar = h("i"), part = row.utilization === null ? null : Math.min(1, row.utilization);
  bar.style.width = `${(part ?? 0) * 100}%`;
  return h("li", {}, h("div", { class: "node" },
    h("div", {}, h("a", { href: `#/budget/${encodeURIComponent(row.budget)}` }, name(row.budget)), " ",
      h("strong", {}, part === null ? "" : percent(part)), part === null ? "" : " used"),
    h("span", { class: "bar", "aria-hidden": "true" }, bar),
    h("div", { class: "small" }, bounds(row)),
    h("div", { class: "small soft" }, [
      row.waiting > 0 ? `${count(row.waiting)} waiting for a share of it` : "nothing waits for a share of it", row.due_in_us > 0 ? `next job in ${lasts(row.due_in_us)}` : null,
      row.why.word === "empty" ? null : shown(why(row, row.budget)), share(row, siblings),
    ].filter(Boolean).join(" · "))),
  children.length > 0 && h("ul", {}, children.map((child) => node(child, children, known(child.budget), known))));
}

/** Show it until the page is left. */
export function budgets(main, signal) {
  const state = h("p", { class: "soft small" }, "Loading…"), tree = h("ul", { class: "tree" });
  put(main, h("h1", {}, "Budgets"), h("section", { class: "card", "aria-label": "Tree of budgets" }, state, tree));
  let last = "";
  const look = async () => {
    try {
      const said = await get("/v1/budgets", signal);
      const names = new Set(said.rows.map((row) => row.budget));
      const order = (rows) => rows.sort((a, b) => (a.budget < b.budget ? -1 : 1));
      const roots = order(said.rows.filter((row) => !row.parent || !names.has(row.parent)));
      const below = (parent) => order(said.rows.filter((row) => row.parent === parent && row.budget !== parent));
      say(state, said.rows.length === 0 ? "The configuration in force names no budget that is in use."
        : `${many(said.rows.length, "budget")}: the ones that most buckets wait for${said.as_of ? ` (counted ${ago(said.age_ms)})` : ""}, all that the configuration names without a glob, and those above them.`);
      const now = JSON.stringify(said.rows);
      if (now === last) return;
      last = now;
      const focused = tree.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      put(tree, roots.map((row) => node(row, roots.filter((other) => other.parent === row.parent), below(row.budget), below)));
      if (focused) tree.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    } catch (why) {
      if (why.name !== "AbortError") say(state, shown(why.message));
    }
  };
  every(2_000, signal, look);
}
