// A browser that does what it is told: a line of JSON on standard input is something to do, a line on standard output what came of it.
// It ends with its standard input, and the browser with it.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [chromium, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const browser = await require("playwright-core").chromium.launch({
  executablePath: chromium,
  args: ["--disable-dev-shm-usage", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])], // root has no sandbox
});

let context, page, trouble = [], hosts = new Set(), streams = new Set();

/** Another tab of the same browser. */
async function tab() {
  page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && trouble.push(message.text()));
  page.on("pageerror", (why) => trouble.push(String(why)));
  page.on("dialog", (dialog) => (trouble.push(`a dialog: ${dialog.message()}`), dialog.dismiss()));
}

/** The one element with this role and name. */
function find({ role, name, exact = true }) {
  return page.getByRole(role, { name, exact });
}

/** Wait until an expression is true. (What playwright has for this needs eval on the page, which the policy of the page forbids.) */
async function until(code) {
  for (const since = Date.now(); !(await page.evaluate(code)); await page.waitForTimeout(20)) {
    if (Date.now() - since > 60_000) throw new Error(`not within 60 s: ${code}`);
  }
}

/** A page that is not there yet answers nothing, ever. */
function tooLong(what) {
  return new Promise((_, reject) => setTimeout(() => reject(new Error(`${what}: not within 90 s`)), 90_000).unref());
}

const DO = {
  async open({ url, theme = "light", width = 1280, height = 900 }) {
    context = await browser.newContext({ colorScheme: theme, viewport: { width, height }, reducedMotion: "reduce" });
    context.setDefaultTimeout(60_000);
    [trouble, hosts, streams] = [[], new Set(), new Set()];
    context.on("request", (request) => {
      const to = new URL(request.url());
      hosts.add(to.host);
      if (to.pathname === "/v1/events") streams.add(request);
    });
    for (const end of ["requestfinished", "requestfailed"]) context.on(end, (request) => streams.delete(request));
    await tab();
    await page.goto(url);
  },
  async tab({ url }) {
    await tab();
    await page.goto(url);
  },
  turn: ({ to }) => void (page = context.pages()[to]),
  close: () => page.close(),
  // No page of a browser without a screen is ever out of view: it is told what a browser would tell it.
  hide: ({ hidden }) => page.evaluate((is) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => is });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden),
  streams: () => [...streams].filter((request) => !request.frame().page().isClosed()).length,
  goto: ({ url }) => page.goto(url),
  reload: () => page.reload(),
  click: (what) => find(what).click(),
  disabled: (what) => find(what).isDisabled(),
  fill: ({ label, text }) => page.getByLabel(label, { exact: true }).fill(text),
  select: ({ label, text }) => page.getByLabel(label, { exact: true }).selectOption({ label: text }).then(() => null),
  press: ({ key }) => page.keyboard.press(key),
  type: ({ text }) => page.keyboard.type(text),
  sees: ({ text }) => page.getByText(text).and(page.locator(":visible")).first().waitFor(),
  gone: ({ text }) => until(`!document.body.innerText.includes(${JSON.stringify(text)})`),
  until: ({ code }) => until(code),
  run: ({ code }) => page.evaluate(code),
  trouble: () => trouble,
  hosts: () => [...hosts],
  async axe() {
    await page.evaluate(await readFile(require.resolve("axe-core/axe.min.js"), "utf8"));
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html.slice(0, 160)} ${node.failureSummary}`).join("; ")}`);
  },
  picture: ({ path, full }) => page.screenshot({ path, fullPage: full ?? true, animations: "disabled" }).then(() => null),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...more } = JSON.parse(line);
  let said;
  try {
    said = { ok: (await Promise.race([DO[what](more), tooLong(what)])) ?? null };
  } catch (why) {
    said = { error: String(why) };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
await browser.close();
process.exit(0);
