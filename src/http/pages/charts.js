// The two charts of the overview, on uPlot: jobs in a second, and how late they left.

import { h, put } from "./dom.js";
import { lasts, number } from "./format.js";
import { live } from "./live.js";

const HEIGHT = 200;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Lines where something was changed. */
function marks(plot) {
  const { ctx, bbox, scales } = plot;
  ctx.save();
  ctx.strokeStyle = colour("warn");
  ctx.setLineDash([4, 4]);
  ctx.lineWidth = 1;
  for (const change of live.changes) {
    const at = change.at_ms / 1_000;
    if (at < scales.x.min || at > scales.x.max) continue;
    const x = Math.round(plot.valToPos(at, "x", true));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(chart, width) {
  const axis = { stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, font: "12px system-ui" };
  return {
    width, height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: true }, y: { range: (_, __, max) => [0, Math.max(max * 1.1 || 0, chart.least)] } },
    axes: [{ ...axis, values: "{HH}:{mm}:{ss}", space: 70 }, { ...axis, size: 62, values: (_, ticks) => ticks.map(chart.tick) }],
    series: [{}, ...chart.series.map((one) => ({
      label: one.label, stroke: colour(one.colour), width: 2, points: { show: false }, spanGaps: false,
    }))],
    hooks: { draw: [marks] },
  };
}

function chart(title, about) {
  const place = h("div", { class: "chart", role: "img", "aria-label": title });
  const values = about.series.map((one) => h("li", { class: `is-${one.colour}` }));
  const legend = h("ul", { class: "legend" }, values);
  const card = h("section", { class: "card", "aria-label": title }, h("h2", {}, title), legend, place);
  let plot = null;
  const data = () => [live.past[0], ...about.series.map((one) => live.past[one.column])];
  return {
    card,
    build() {
      plot?.destroy();
      plot = new globalThis.uPlot(options(about, place.clientWidth || 320), data(), place);
    },
    draw() {
      plot?.setData(data());
      const said = about.series.map((one) => {
        const last = live.past[one.column].at(-1);
        return `${one.label} ${last === null || last === undefined ? "–" : about.tick(last)}`;
      });
      values.forEach((value, at) => put(value, said[at]));
      place.setAttribute("aria-label", `${title}, the last ${lasts((live.past[0].at(-1) - live.past[0][0]) * 1e6 || 0)}: now ${said.join(", ")}`);
    },
    resize() {
      if (place.clientWidth > 0) plot?.setSize({ width: place.clientWidth, height: HEIGHT });
    },
  };
}

/** Both charts, kept up to date until the page is left. */
export function charts(signal) {
  const all = [
    chart("Jobs per second", {
      least: 1, tick: (n) => number(n),
      series: [{ label: "dispatched", column: 1, colour: "blue" }, { label: "rejected", column: 2, colour: "red" }],
    }),
    chart("How late jobs left", {
      least: 0.001, tick: (seconds) => lasts(Math.round(seconds * 1e6)),
      series: [{ label: "p50: half of the jobs", column: 3, colour: "teal" }, { label: "p99: 99 of 100 jobs", column: 4, colour: "violet" }],
    }),
  ];
  const box = h("div", { class: "two" }, all.map((one) => one.card));
  const draw = () => document.hidden || all.forEach((one) => one.draw());
  for (const what of ["past", "totals", "changes"]) live.addEventListener(what, draw, { signal });
  document.addEventListener("visibilitychange", draw, { signal });
  const sizes = new ResizeObserver(() => all.forEach((one) => one.resize()));
  const build = () => all.forEach((one) => (one.build(), one.draw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build, { signal });
  requestAnimationFrame(() => {
    if (signal.aborted) return;
    build();
    sizes.observe(box);
  });
  signal.addEventListener("abort", () => sizes.disconnect());
  return box;
}
