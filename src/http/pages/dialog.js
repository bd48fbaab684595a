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
  tell.timer = setTimeout(() => (place.hidden = true), 8_000);
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
    const button = h("button", { class: isBad ? "is-bad" : "is-go", type: "submit" }, go);
    const form = h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          done = await act(Object.fromEntries(new FormData(form)));
          dialog.close();
        } catch (why) {
          wrong.hidden = false;
          wrong.textContent = shown(why.message);
          button.disabled = false;
        }
      },
    }, h("h2", { id: "dialog-title" }, title), words.map((text) => h("p", {}, text)), fields.map(input), wrong,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button));
    put(dialog, form);
    dialog.addEventListener("close", () => resolve(done), { once: true });
    dialog.showModal();
    (form.querySelector("input") ?? form.querySelector("button")).focus();
  });
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
    await confirm({
      title: "Give a token",
      words: ["With a token that may read, jobs are shown; with one that may operate, buckets can be changed. It is kept in this tab until that is closed."],
      fields: [{ id: "token", label: "Token: the first line of its file", type: "password", required: true }],
      go: "Use this token",
      async act({ token: text }) {
        try {
          await ask("GET", "/v1/settings?match=x", { given: text.trim() });
        } catch (why) {
          if (!(why instanceof Problem) || why.status !== 403) throw why; // it is one, though not for all of this
        }
        token.set(text.trim());
        tell("The token is used.");
      },
    });
  });
  document.addEventListener("token", draw);
  draw();
}
