// One dialog: for the token, and before anything is changed. Nothing is done without it.

import { Problem, ask, token } from "./api.js";
import { field, h, put, shown } from "./dom.js";

const dialog = document.getElementById("dialog");

/** Tell what became of something: seen, and read out. */
export function tell(words) {
  const place = document.getElementById("said");
  place.hidden = false;
  place.textContent = words;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => (place.hidden = true), Math.max(8_000, words.length * 80));
}

function input({ id, label, type = "text", hint = "", value = "", required = false }) {
  return field(label, h("input", { id: `d-${id}`, name: id, type, value, placeholder: hint, required, autocomplete: "off", spellcheck: "false" }));
}

/**
 * Ask. `go` names what the button does; `act` does it with the values of the fields, and what it throws is shown in the dialog.
 * Replies what `act` did, or null where nothing was to be done.
 */
export function confirm({ title, words = [], fields = [], go, isBad = false, act }) {
  return new Promise((resolve) => {
    let done = null;
    const wrong = h("p", { class: "bad", role: "alert", hidden: true });
    const close = () => dialog.close();
    const cancel = h("button", { type: "button", onclick: close }, "Cancel");
    const button = h("button", { class: isBad ? "is-bad" : "is-go", type: "submit" }, go);
    const form = h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        cancel.textContent = "Close"; // what is on its way is not cancelled
        const isHere = () => dialog.open && form.isConnected;
        try {
          done = await act(Object.fromEntries(new FormData(form)));
          if (isHere()) close();
          else tell(done);
        } catch (why) {
          if (!isHere()) tell(shown(why.message));
          wrong.hidden = false;
          wrong.textContent = shown(why.message);
          button.disabled = false;
          cancel.textContent = "Cancel";
        }
      },
    }, h("h2", { id: "dialog-title" }, title), words.map((text) => h("p", {}, text)), fields.map(input), wrong,
    h("div", { class: "row" }, cancel, button));
    put(dialog, form);
    addEventListener("hashchange", close); // it was about another page
    // It is heard of a little after the dialog is closed, and the next question may be open by then.
    const closed = () => {
      if (dialog.open && form.isConnected) return;
      removeEventListener("hashchange", close);
      dialog.removeEventListener("close", closed);
      resolve(done);
    };
    dialog.addEventListener("close", closed);
    dialog.showModal();
    (form.querySelector("input") ?? form.querySelector("button")).focus();
  });
}

/** Ask for something with a token; `null` where it opens that, else what it is told. */
async function refused(text, method, path, body) {
  try {
    await ask(method, path, { given: text, body });
    return null;
  } catch (why) {
    if (why instanceof Problem && why.status === 403) return why.message;
    throw why;
  }
}

/** What a token may do, in words. What is no token is thrown. */
async function powersOf(text) {
  const some = "/v1/settings?match=x";
  const noRead = await refused(text, "GET", some);
  // No dead letter died in 1970: it is counted, and nothing is changed.
  const noChange = await refused(text, "POST", "/v1/dead/drop", { before: "1970-01-01T00:00:01Z", dry_run: true });
  if (!noRead && !noChange) return "It may read and change everything.";
  if (!noRead) return `Jobs and dead letters are shown, nothing can be changed: ${shown(noChange)}.`;
  const rest = await ask("GET", some, { given: "" }).then(() => "The rest is read without a token", () => "The rest cannot be read without another token");
  return `It does not open everything: ${shown(noRead === noChange ? noRead : `${noRead}; ${noChange}`)}. ${rest}.`;
}

/** The button for the token: it gives one, or forgets it. */
export function tokenButton(button) {
  const draw = () => (button.textContent = token.get() ? "Forget the token" : "Read only: give a token");
  button.addEventListener("click", async () => {
    if (token.get()) {
      token.set("");
      tell("The token is forgotten: this page is read-only.");
      return;
    }
    const done = await confirm({
      title: "Give a token",
      words: ["With a token that may read, jobs are shown; with one that may operate, buckets can be changed. It is kept in this tab until that is closed."],
      fields: [{ id: "token", label: "Token: the first line of its file", type: "password", required: true }],
      go: "Use this token",
      async act({ token: given }) {
        const powers = await powersOf(given.trim());
        token.set(given.trim());
        return `The token is used. ${powers}`;
      },
    });
    if (done) tell(done);
  });
  document.addEventListener("token", draw);
  draw();
}
