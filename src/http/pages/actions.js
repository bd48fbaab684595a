// What can be done to a bucket or a budget: pause, rate, slow. Each says first what it does.

import { get, pathOf, send, token } from "./api.js";
import { confirm, tell } from "./dialog.js";
import { h, put, shown } from "./dom.js";
import { lasts } from "./format.js";

const FOR = { id: "for", label: "For how long (left empty: until it is taken back)", hint: "10m" };
const REASON = { id: "reason", label: "Why (others see it)", hint: "carrier down" };

/** The fields that have a value. */
function given(values, ...names) {
  return Object.fromEntries(names.filter((name) => values[name]?.trim()).map((name) => [name, values[name].trim()]));
}

/** What became of a change, in words. */
function became(reply, done) {
  const instead = Object.entries(reply.in_force_instead ?? {}).map(([key, other]) => `in force is ${key} = ${shown(other.value)}, set for ${shown(other.match)}`);
  if (!reply.done) return ["Nothing was changed.", ...instead].join(" ");
  return [done, ...instead].join("; ");
}

/** The actions on one bucket or budget; `again` is called after each. */
export function actions(kind, name, signal, again) {
  const label = shown(name), path = pathOf(kind, name), what = `the ${kind} “${label}”`;
  const note = h("p", { class: "soft small" });

  const change = async (about) => {
    const done = await confirm(about);
    if (done) tell(done);
    if (done) again();
  };

  const pause = () => change({
    title: `Pause ${what}?`,
    words: [kind === "bucket" ? "Nothing leaves it until it is resumed. It takes jobs in until it is full. Jobs that are out already are not called back."
      : "Nothing leaves the buckets below it until it is resumed. Jobs that are out already are not called back."],
    fields: [FOR, REASON], go: `Pause ${label}`, isBad: true,
    act: async (values) => became(await send("POST", `${path}/pause`, given(values, "for", "reason")), `${label} is paused.`),
  });

  const resume = () => change({
    title: `Resume ${what}?`,
    words: ["It goes on at its rate: what waited while it was paused gives no credit."],
    go: `Resume ${label}`,
    act: async () => {
      const reply = await send("POST", `${path}/resume`, {});
      if (reply.stopped_by) return `${label} is still paused, by ${shown(reply.stopped_by)}.`;
      return became(reply, `${label} goes on.`);
    },
  });

  const rate = async () => {
    const said = await get(path).catch(() => ({}));
    const now = (said.explanation ?? said).chain?.[0]?.rate ?? "";
    await change({
      title: `Set the rate of ${what}?`,
      words: [`It is ${now || "not limited"} now. The new rate is in force at once and lies over the file; jobs that wait leave at it.`],
      fields: [{ id: "rate", label: "Rate", value: now, hint: "5/s", required: true }, FOR, REASON], go: `Set the rate of ${label}`,
      act: async (values) => {
        const query = new URLSearchParams(given(values, "for", "reason"));
        const reply = await send("PATCH", `${path}/settings?${query}`, { rate: values.rate.trim() });
        return became(reply, `The rate of ${label} is ${values.rate.trim()}.`);
      },
    });
  };

  const unset = () => change({
    title: `Take the rate of ${what} back to the file?`,
    words: ["The rate that was set at run time is removed, and the one of the file is in force at once."],
    go: `Take the rate of ${label} back`,
    act: async () => became(await send("DELETE", `${path}/settings/rate`), `The rate of ${label} is that of the file.`),
  });

  const slow = () => change({
    title: `Slow ${what} down?`,
    words: ["Nothing leaves it for this time, as if the other side had asked for it. After that it goes on, carefully at first, and gets faster by itself."],
    fields: [{ id: "for", label: "For how long", hint: "30s", required: true }, REASON], go: `Slow ${label} down`, isBad: true,
    act: async (values) => {
      const reply = await send("POST", `${path}/slow`, given(values, "for", "reason"));
      return `${label} is slowed down${reply.goes_on_in_ms ? ` for ${lasts(reply.goes_on_in_ms * 1_000)}` : ""}.`;
    },
  });

  const faster = () => change({
    title: `End the slow-down of ${what}?`,
    words: ["It goes on at its full rate at once."],
    go: `End the slow-down of ${label}`,
    act: async () => {
      await send("POST", `${path}/slow`, { clear: true });
      return `The slow-down of ${label} is over.`;
    },
  });

  const buttons = [["Pause…", pause], ["Resume…", resume], ["Set rate…", rate], ["Rate of the file…", unset], ["Slow down…", slow], ["End slow-down…", faster]]
    .map(([text, act]) => h("button", { type: "button", onclick: act }, text));
  const draw = () => {
    const isReadOnly = !token.get();
    buttons.forEach((button) => (button.disabled = isReadOnly));
    put(note, isReadOnly ? "This page is read-only until a token is given." : "Each asks before it does anything.");
  };
  document.addEventListener("token", draw, { signal });
  draw();
  return h("section", { class: "card", "aria-labelledby": "act" }, h("h2", { id: "act" }, "Change"), h("div", { class: "row" }, buttons), note);
}
