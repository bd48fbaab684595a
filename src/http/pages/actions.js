// What can be done to a bucket or a budget: pause, rate, slow. Each says first what it does.

import { get, pathOf, send, token } from "./api.js";
import { confirm, tell } from "./dialog.js";
import { h, put, shown } from "./dom.js";
import { lasts } from "./format.js";

const FOR = { id: "for", label: "For how long (empty: until somebody ends it)", hint: "10m" };
const REASON = { id: "reason", label: "Why (others see it)", hint: "carrier down" };

/** The fields that have a value. */
function given(values, ...names) {
  return Object.fromEntries(names.filter((name) => values[name]?.trim()).map((name) => [name, values[name].trim()]));
}

/** A word of a command line, quoted where a shell would take it for more. */
function quoted(word) {
  return /^[\w:.,@%+\/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** The commands that say before what another rate would do. */
function ahead(kind, name, now) {
  const load = quoted(`${kind === "bucket" ? name : "NAME"}: ${now || "10/s"}`);
  const forTraffic = `for traffic to come: dripd simulate --config NEW.toml --against config.toml --for 10m --load ${load}`;
  return `To see first what it would do, ${kind === "bucket" ? `for the jobs that wait: dripd what-if ${quoted(name)} rate=5/s; ` : ""}${forTraffic}`;
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

  // One question at a time: the present rate is asked for before the question comes. A dialog that is open lets nobody press the buttons below it.
  let isAsking = false;
  const once = (act) => {
    if (isAsking) return;
    isAsking = true;
    act();
  };

  const change = async (about) => {
    isAsking = false;
    const done = await confirm(about);
    if (!done) return;
    tell(done);
    again();
  };

  const pause = () => change({
    title: `Pause ${what}?`,
    words: [kind === "bucket" ? "No job leaves until it is resumed. New jobs still go in until it is full. Jobs that workers already have are not called back."
      : "No job leaves the buckets below it until it is resumed. Jobs that workers already have are not called back."],
    fields: [FOR, REASON], go: `Pause ${label}`, isBad: true,
    act: async (values) => became(await send("POST", `${path}/pause`, given(values, "for", "reason")), `${label} is paused.`),
  });

  const resume = () => change({
    title: `Resume ${what}?`,
    words: ["Jobs leave at its rate again. The pause is not made up for: there is no burst."],
    go: `Resume ${label}`,
    act: async () => {
      const reply = await send("POST", `${path}/resume`, {});
      if (reply.stopped_by) return `${label} is still paused, by ${shown(reply.stopped_by)}.`;
      return became(reply, `${label} goes on.`);
    },
  });

  const rate = async () => {
    const said = await get(path, signal).catch(() => ({}));
    if (signal.aborted) return;
    const now = (said.explanation ?? said).chain?.[0]?.rate ?? "";
    await change({
      title: `Set the rate of ${what}?`,
      words: [`It is ${now || "not limited"} now. The new rate holds at once, also for jobs that already wait. It replaces the one in the configuration file until it is taken back.`, shown(ahead(kind, name, now))],
      fields: [{ id: "rate", label: "Rate", value: now, hint: "5/s", required: true }, FOR, REASON], go: `Set the rate of ${label}`,
      act: async (values) => {
        const query = new URLSearchParams(given(values, "for", "reason"));
        const reply = await send("PATCH", `${path}/settings?${query}`, { rate: values.rate.trim() });
        return became(reply, `The rate of ${label} is ${values.rate.trim()}.`);
      },
    });
  };

  const unset = () => change({
    title: `Use the rate in the configuration file for ${what}?`,
    words: ["The rate that was set here or by a command is removed. The one in the file holds at once."],
    go: `Use the rate in the file for ${label}`,
    act: async () => became(await send("DELETE", `${path}/settings/rate`), `The rate of ${label} is the one in the file.`),
  });

  const slow = () => change({
    title: `Slow ${what} down?`,
    words: ["No job leaves for this time, as after a 429 from the service that your workers call. Then it goes on, slowly at first, and gets faster by itself."],
    fields: [{ id: "for", label: "For how long", hint: "30s", required: true }, REASON], go: `Slow ${label} down`, isBad: true,
    act: async (values) => {
      const reply = await send("POST", `${path}/slow`, given(values, "for", "reason"));
      return `${label} is slowed down${reply.goes_on_in_ms ? ` for ${lasts(reply.goes_on_in_ms * 1_000)}` : ""}.`;
    },
  });

  const faster = () => change({
    title: `End the slow-down of ${what}?`,
    words: ["Jobs leave at its full rate again, at once."],
    go: `End the slow-down of ${label}`,
    act: async () => {
      await send("POST", `${path}/slow`, { clear: true });
      return `The slow-down of ${label} is over.`;
    },
  });

  const buttons = [["Pause…", pause], ["Resume…", resume], ["Set rate…", rate], ["Use rate in file…", unset], ["Slow down…", slow], ["End slow-down…", faster]]
    .map(([text, act]) => h("button", { type: "button", onclick: () => once(act) }, text));
  const draw = () => {
    const isReadOnly = !token.get();
    buttons.forEach((button) => (button.disabled = isReadOnly));
    put(note, isReadOnly ? "This page is read-only until a token is given." : "Each asks first.");
  };
  document.addEventListener("token", draw, { signal });
  draw();
  return h("section", { class: "card", "aria-labelledby": "act" }, h("h2", { id: "act" }, "Actions"), h("div", { class: "row" }, buttons), note);
}
