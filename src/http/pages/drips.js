// The drip of a bucket on a time line: when each of its last jobs was due, and when it left.

import { get, pathOf } from "./api.js";
import { h, put, s, say } from "./dom.js";
import { lasts, many, moment } from "./format.js";

const WIDTH = 1_000, TOP = 24, LEFT = 74, LENGTH = 30;

function line(kind, x1, y1, x2, y2) {
  return s("line", { class: kind, x1: x1.toFixed(1), y1, x2: x2.toFixed(1), y2 });
}

function at(part, all) {
  return all[Math.min(all.length - 1, Math.floor(part * all.length))];
}

/** The card; it is asked for what is new by `look`. */
export function drips(bucket, signal) {
  const drawing = s("svg", { class: "drips", viewBox: `0 0 ${WIDTH} 130`, preserveAspectRatio: "none", role: "img", "aria-label": "No job has left yet" });
  const words = h("p", { class: "small soft" }, "Jobs that leave from now on are shown.");
  const [from, to] = [h("span"), h("span")];
  const times = h("p", { class: "soft small", "aria-hidden": "true", hidden: true }, from, " → ", to);
  const body = h("tbody");
  const table = h("details", {}, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of the last jobs" },
    h("table", {}, h("thead", {}, h("tr", {}, ["Due", "Left", "Late"].map((text) => h("th", { scope: "col" }, text)))), body)));
  const card = h("section", { class: "card", "aria-labelledby": "drip" }, h("h2", { id: "drip" }, "Last jobs: when due, when they left"),
    h("ul", { class: "legend" }, h("li", { class: "is-hidden" }, "top: due"), h("li", {}, "bottom: left"), h("li", { class: "is-red" }, "left more than half an interval late")),
    drawing, times, words, table);
  let last = -1;
  const look = async (intervalUs) => {
    const said = await get(`${pathOf("bucket", bucket)}/drips`, signal);
    if (said.left === null) return say(words, "The last jobs of this bucket are not remembered: too many other buckets are looked at just now.");
    if (said.drips.length === 0) return null;
    times.hidden = false;
    const begin = Math.min(...said.drips.map(([due]) => due)), length = Math.max(1, said.at_us - begin);
    const x = (us) => 4 + ((us - begin) / length) * (WIDTH - 8);
    const marks = said.drips.flatMap(([due, left]) => {
      const kind = left - due > Math.max(1_000, intervalUs / 2) ? "late" : "left";
      return [line("due", x(due), TOP, x(due), TOP + LENGTH), line(kind, x(due), TOP + LENGTH, x(left), LEFT), line(kind, x(left), LEFT, x(left), LEFT + LENGTH)];
    });
    put(drawing, line("axis", 0, 115, WIDTH, 115), marks);
    say(from, moment(begin / 1_000));
    say(to, moment(said.at_us / 1_000));
    if (said.left === last) return null;
    last = said.left;
    const late = said.drips.map(([due, left]) => left - due).sort((a, b) => a - b);
    const text = `The last ${many(said.drips.length, "job")}: half left at most ${lasts(at(0.5, late))} late, 99 of 100 at most ${lasts(at(0.99, late))}, the latest ${lasts(late.at(-1))}.`;
    say(words, text);
    drawing.setAttribute("aria-label", text);
    const row = ([due, left]) => h("tr", {}, h("td", {}, moment(due / 1_000)), h("td", {}, moment(left / 1_000)), h("td", {}, lasts(left - due)));
    put(body, said.drips.slice(-20).reverse().map(row));
    return null;
  };
  return { card, look };
}
