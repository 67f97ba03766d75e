// Numbers and texts written as Python writes them, for modules that make in the browser what Python makes on a server.

const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const EDGES = new RegExp(`^${SPACE}+|${SPACE}+$`, "gu");
const GAPS = new RegExp(`${SPACE}+`, "gu");
const BIDI = /[\u202a-\u202e\u2066-\u2069]/gu; // they change the direction of the text around them
const ESCAPED = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
const EXACT = 60; // digits that show whether a number lies halfway between two shorter ones

// f"{value:.2f}": halves go to the even digit, and JavaScript's own take them away from zero.
export function fixed(value, digits) {
  const text = value.toFixed(digits);
  if (!Number.isInteger(2 * value * 10 ** digits)) return text; // nowhere near halfway, as nearly all
  const exact = Math.abs(value).toFixed(EXACT);
  const cut = exact.indexOf(".") + 1 + digits;
  if (!/^50*$/.test(exact.slice(cut))) return text;
  const down = exact.slice(0, cut).replace(/\.$/, "");
  return Number(down.at(-1)) % 2 ? text : (value < 0 ? "-" : "") + down;
}

// round(value, digits)
export const rounded = (value, digits = 0) => Number(fixed(value, digits));

// f"{value:g}"
export function general(value, digits = 6) {
  const exponent = value ? Number(value.toExponential(digits - 1).split("e")[1]) : 0;
  if (exponent >= -4 && exponent < digits) return String(Number(fixed(value, digits - 1 - exponent)));
  const [front, power] = value.toExponential(digits - 1).split("e");
  return `${Number(front)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

// f"{value:.1e}"
export function scientific(value, digits) {
  const [front, power] = value.toExponential(digits).split("e");
  return `${front}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

export const stripped = (text) => text.replace(EDGES, "");
export const oneSpace = (text) => stripped(text).replace(GAPS, " "); // " ".join(text.split())
export const startsWithSpace = (text) => new RegExp(`^${SPACE}`, "u").test(text);
export const printable = (letter) => letter === " " || !/[\p{C}\p{Z}]/u.test(letter);
export const isWordLetter = (letter) => /^[\p{L}\p{N}]$/u.test(letter);
export const withoutBidi = (text) => text.replace(BIDI, "\ufffd");
export const escaped = (text) => text.replace(/[&<>"']/g, (letter) => ESCAPED[letter]);
export const letters = (text) => [...text]; // Python counts these, and JavaScript halves of some

// At most so many letters, the last an ellipsis where some are left out.
export function shortened(text, most) {
  const all = letters(text);
  return all.length <= most ? text : `${all.slice(0, most - 1).join("")}…`;
}
