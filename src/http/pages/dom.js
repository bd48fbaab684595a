// Elements and texts. Whatever comes from outside becomes a text node here and nothing else.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element with attributes, listeners (`onclick`) and children. */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same in a drawing. */
export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// Control characters, and marks that cannot be seen or that turn the reading direction.
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\\]/gu;

function escaped(character) {
  if (character === "\\") return "\\\\";
  return `\\u{${character.codePointAt(0).toString(16)}}`;
}

/** A text from outside with everything visible, as the command line shows it: `a\u{202e}b`. */
export function shown(text) {
  return String(text ?? "").replace(HIDDEN, escaped);
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** How many bytes from here on are one character; 0: they are none. */
function character(bytes, at) {
  for (let length = 1; length <= 4 && at + length <= bytes.length; length += 1) {
    try {
      strict.decode(bytes.subarray(at, at + length));
      return length;
    } catch {
      // It may be longer.
    }
  }
  return 0;
}

/** Bytes from outside: what is no text among them is shown as `\xff`. */
export function shownBytes(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = character(bytes, at);
    text += length ? shown(strict.decode(bytes.subarray(at, at + length))) : `\\x${bytes[at].toString(16).padStart(2, "0")}`;
    at += length || 1;
  }
  return text;
}

/** A name from outside, kept apart from the text around it. */
export function name(text, attributes) {
  return h("bdi", { class: "name", ...attributes }, shown(text));
}

/** A control that has an id, below its label. */
export function field(label, control) {
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control);
}

/** Change a text only where it is another one: a screen reader and the layout are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put these children into a place of old ones. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}
