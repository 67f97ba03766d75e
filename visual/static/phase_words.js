// What the target says, written at the guesses of a step: in its pass its own next token over every one of them, then each
// pair compared. Words that would touch anything are a mark, with the words in its title; the accepted branch comes first.

const SVG = "http://www.w3.org/2000/svg";
export const LINE = 14; // pixels of a line of words
const AIR = 3; // pixels between words and their neighbours
const AWAY = 4; // pixels between a label and what is written beside it
const MARK = 11; // pixels of a mark
const SLICE = 60; // pixels of width
const BASE = 3.5; // pixels between a line's base and its foot

// Writes `notes` (of step_phases.js) into `layer`. `marks` has the boxes of point and label of each node in sight, `size`
// those of the drawing. Returns the boxes of everything there, and the nodes whose labels move up by a line.
export function layWords(layer, notes, marks, size) {
  const taken = [...marks].flatMap(([node, { boxes: [point, label] }]) => [{ ...point, node }, ...(label ? [{ ...label, node, label }] : [])]);
  const raised = [];
  const ruler = rulerOf(layer);
  const slices = new Map(); // the same boxes by slice of the drawing
  const take = (box) => slicesOf(box).forEach((slice) => slices.set(slice, slices.get(slice) ?? []).get(slice).push(box));
  const free = (box, own) => box.x >= 0 && box.y >= 0 && box.x + box.width <= size.width && box.y + box.height <= size.height
    && !slicesOf(box).some((slice) => slices.get(slice)?.some((other) => other.node !== own && meet(box, other)));
  taken.forEach(take);
  for (const note of notes.filter(({ node }) => marks.has(node))) {
    const { node } = note;
    if (note.fate === "open" && !marks.get(node).boxes[1]) continue; // a word without its guess
    const places = placesOf(note, marks.get(node).boxes, ruler.measureText(textOf(note)).width);
    const place = places.find((box) => free(box, box.lifts ? node : null) && (!box.lifts || free({ ...marks.get(node).boxes[1], y: box.lifts }, node)));
    if (!place) continue;
    layer.append(written(note, place));
    const { x, y, width, height } = place;
    const box = { x, y, width, height };
    taken.push(box);
    take(box);
    if (!place.lifts) continue;
    taken.find((box) => box.node === node && box.label).y = place.lifts;
    raised.push(node);
  }
  return { taken, raised };
}

// Numbers of the upright slices that a box reaches into: boxes that meet share one.
function slicesOf({ x, width }) {
  const [first, last] = [x, x + width].map((edge) => Math.floor(edge / SLICE));
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}

// Where a note may be, the best first: over its node, below the label, or beside a label that is beside the node; one on
// the token to come is beyond the node. `lifts` is where the label goes then.
function placesOf({ beyond, mark }, [point, label], long) {
  const [width, height, middle] = [long + 2 * AIR, LINE, { x: point.x + point.width / 2, y: point.y + point.height / 2 }];
  const beside = label && label.x > middle.x; // the tree is upright
  const right = label && label.x + label.width + AWAY;
  const under = { x: label?.x, y: label && label.y + label.height, width, height };
  if (beyond) return [beside ? under : { x: point.x + point.width + AWAY, y: middle.y - LINE / 2, width, height }];
  const foot = label ? label.y + label.height : point.y;
  const full = beside ? [{ x: right, y: middle.y - LINE / 2, width, height }, under]
    : [{ x: middle.x - width / 2, y: foot - LINE, width, height, lifts: label && label.y - LINE }];
  if (!mark) return full;
  const small = { y: foot - LINE, width: MARK, height, brief: true };
  const about = label ? [right - AWAY, label.x - MARK] : [middle.x - MARK / 2];
  return [...full, ...[...about, point.x + point.width].map((x) => ({ ...small, x })), { ...small, x: point.x + point.width, y: middle.y - LINE / 2 }];
}

const textOf = ({ parts }) => parts.map(([, text]) => text).join("");

function written(note, { x, y, brief }) {
  const about = { y: y + LINE - BASE, "data-node": note.node };
  if (brief) {
    const [kind, sign] = note.mark;
    const text = make("text", { class: `ph-says ${note.fate} brief ph-${kind}`, x, ...about });
    text.append(Object.assign(make("title", {}), { textContent: note.title }), sign);
    return text;
  }
  const text = make("text", { class: `ph-says ${note.fate}`, x: x + AIR, ...about });
  text.append(...note.parts.map(([kind, words]) => Object.assign(make("tspan", { class: `ph-${kind}` }), { textContent: words })));
  return text;
}

// Measures words as the stylesheet sets them.
function rulerOf(layer) {
  const probe = layer.appendChild(make("text", { class: "ph-says" }));
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = getComputedStyle(probe).font;
  probe.remove();
  return ruler;
}

export const meet = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
