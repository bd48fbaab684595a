// The frame of all pages: which one is shown, whether the connection is there, and the token.

import { budgets } from "./budgets.js";
import { changes } from "./changes.js";
import { dead } from "./dead.js";
import { tokenButton } from "./dialog.js";
import { say, shown } from "./dom.js";
import { live, start } from "./live.js";
import { bucket, budget } from "./node.js";
import { overview } from "./overview.js";

const main = document.getElementById("main");

/** The pages by the first word behind the #; each gets the rest as a name. */
const PAGES = {
  "": ["Overview", overview], bucket: ["Bucket", bucket], budgets: ["Budgets", budgets], budget: ["Budget", budget],
  changes: ["Changes", changes], dead: ["Dead letters", dead],
};

let leave = new AbortController();

function show(isFirst) {
  leave.abort();
  leave = new AbortController();
  const [, word = "", rest = ""] = location.hash.split("/");
  const [title, page] = Object.hasOwn(PAGES, word) ? PAGES[word] : PAGES[""];
  let subject = "";
  try {
    subject = decodeURIComponent(rest);
  } catch {
    subject = rest;
  }
  document.title = subject ? `${shown(subject)} – dripd` : `${title} – dripd`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${word}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page(main, leave.signal, subject);
  if (!isFirst) main.focus({ preventScroll: true });
}

const STATES = { connecting: "Connecting…", good: "Connected", lost: "Connection lost", refused: "Not allowed" };

function drawLink() {
  const { state, why, redis } = live.link;
  const place = document.getElementById("link"), lost = document.getElementById("lost");
  say(place, state === "good" && redis ? "Redis does not answer" : STATES[state]);
  place.className = state === "good" && !redis ? "is-good" : state === "connecting" ? "" : "is-lost";
  const words = state === "lost" ? `The connection to dripd is lost: ${why}. It is tried again; what is shown may be old.`
    : state === "refused" ? `This page may not read: ${why}.`
    : redis ? `dripd has lost its Redis: ${redis}. It is tried again; what is shown may be old.` : "";
  say(lost, shown(words));
  lost.hidden = !words;
}

addEventListener("hashchange", () => show(false));
live.addEventListener("link", drawLink);
tokenButton(document.getElementById("token"));
show(true);
start();
