// Numbers, times and rates as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A count: 12,345. */
export const count = (n) => whole.format(n ?? 0);

/** A count in a narrow place: 12.3K. */
export const brief = (n) => ((n ?? 0) < 10_000 ? whole.format(n ?? 0) : compact.format(n));

export const number = (n) => short.format(n ?? 0);

/** `1 job`, `3 jobs`. */
export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

const UNITS = [[86_400_000_000, "d"], [3_600_000_000, "h"], [60_000_000, "m"], [1_000_000, "s"], [1_000, "ms"], [1, "µs"]];

/** A length of time: 3.2 s, 1 h 5 m. */
export function lasts(us) {
  if (!us || us < 1) return "0";
  const at = UNITS.findIndex(([size]) => us >= size);
  const [size, unit] = UNITS[at];
  if (at >= 3) return `${short.format(us / size)} ${unit}`;
  const [smaller, smallUnit] = UNITS[at + 1];
  const rest = Math.floor((us % size) / smaller);
  return rest ? `${whole.format(Math.floor(us / size))} ${unit} ${rest} ${smallUnit}` : `${whole.format(Math.floor(us / size))} ${unit}`;
}

const PERIODS = { 1_000_000: "s", 60_000_000: "m", 3_600_000_000: "h", 86_400_000_000: "d" };

/** A rate as in the file: 5/s, 1/500ms. */
export function rate(jobs, periodUs) {
  if (!jobs || !periodUs) return "no rate";
  const period = PERIODS[periodUs] ?? lasts(periodUs).replaceAll(" ", "");
  return `${jobs}/${period}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A moment: 12:03:11, and the day where it is another one. */
export function moment(ms) {
  if (!ms) return "";
  const at = new Date(ms);
  return (at.toDateString() === new Date().toDateString() ? clock : day).format(at);
}

/** How long ago, in words. */
export const ago = (ms) => (ms < 1_000 ? "now" : `${lasts(Math.floor(ms / 1_000) * 1_000_000)} ago`);

/** A part of something, in percent. */
export const percent = (part) => `${Math.round((part ?? 0) * 100)} %`;

const WHY = {
  "wrong-type": (about) => `its key holds a ${about}`,
  refused: (about) => `refused: ${about}`,
  paused: (about, name) => (about === name ? "paused" : `paused (${about})`),
  "paused-above": (about) => `${about} is paused`,
  slots: (about) => `all slots are taken: ${about}`,
  slow: () => "slowed down: nothing leaves yet",
  slowed: (about) => `slowed down to ${about} %`,
  told: (about) => `the other side says: ${about}`,
  quota: () => "quota used up",
  rate: () => "at its rate",
  share: (about) => `for its share of ${about}`,
  held: (about) => `for workers of ${about}`,
  "backing-off": () => "failed jobs wait before the next try",
  delayed: () => "delayed jobs wait for their time",
  due: () => "due",
  empty: () => "empty",
};

const PLACE = {
  due: "due", share: "for a share of a budget", full: "all slots are taken", held: "for workers", paused: "paused", refused: "refused", idle: "empty",
};

/** Why a bucket or budget of this name waits, in a few words. */
export function why(row, name) {
  // More than its rate puts its next job off: the walk does not say what.
  if (!row.why && row.place === "due" && row.due_in_us > Math.ceil(row.period_us / Math.max(1, row.count))) return `due in ${lasts(row.due_in_us)}`;
  if (!row.why) return PLACE[row.place] ?? String(row.place);
  const words = WHY[row.why.word];
  return words ? words(row.why.about, name) : row.why.word;
}
