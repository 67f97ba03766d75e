// Shapes of frames (visual/player/frames.py) as far as the player relies on them. What older pages lack may be missing here.

import { LANES } from "./race.js";

const MAX_FRAMES = 5000; // of all lists of a page
const MAX_DEPTH = 12; // of a figure
const LINK = /<a[\s>]/i; // Plotly reads labels as a kind of HTML, which knows links

// --- kinds of values ------------------------------------------------------------------------------

const text = (value) => typeof value === "string";
const number = Number.isFinite;
const whole = Number.isSafeInteger;
const count = (value) => whole(value) && value >= 0;
const duration = (value) => number(value) && value >= 0;
const flag = (value) => typeof value === "boolean";
const object = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const lane = (value) => LANES.includes(value);
const maybe = (shape) => (value) => value === undefined || value === null || fits(value, shape);
const list = (shape) => (value) => Array.isArray(value) && value.every((one) => fits(one, shape));
const row = (...shapes) => (value) => Array.isArray(value) && value.length === shapes.length && shapes.every((shape, place) => fits(value[place], shape));
const byName = (shape) => (value) => object(value) && Object.values(value).every((one) => fits(one, shape));
const both = (one, other) => (value) => fits(value, one) && fits(value, other);

// A shape is a predicate, or an object with a shape for each field.
function fits(value, shape) {
  if (typeof shape === "function") return shape(value);
  return object(value) && Object.entries(shape).every(([name, one]) => fits(Object.hasOwn(value, name) ? value[name] : undefined, one));
}

// Plain data that Plotly may draw: no link in a text, no picture from an address.
function drawable(value, depth = 0) {
  if (text(value)) return !LINK.test(value);
  if (value === null || typeof value !== "object") return true;
  return depth < MAX_DEPTH && !Object.hasOwn(value, "images") && Object.values(value).every((one) => drawable(one, depth + 1));
}

// --- frames ---------------------------------------------------------------------------------------

const TURN = { question: text, answer: maybe(text), tau: maybe(number), reused: maybe(count), prompt_tokens: maybe(count) };
const LESSON = { title: text, question: text, answer: text, place: maybe(text), phase: maybe(text), node: maybe(count), step: maybe(count), number: count, count };
const PICTURE = (value) => text(value) && /^data:image\/(png|jpeg|webp);base64,[A-Za-z0-9+/=]*$/.test(value);
const WORDS = list(row(text, text));
const LED = { ids: list(count), totals: byName(text), cached: count, picture: text };
const RANGE = row(number, number);
const SHAPES = list({ name: text, path: text });
const GROUNDING = { ids: list(count), factor: number, words: list({ at: count, seen: number, blank: number, instead: maybe(text), lost: list(number) }) };
const CHART = { question: text, answer: text, columns: list(text), rows: list(list(text)), figures: list(both(drawable, { data: list(object), layout: object })) };

const FRAMES = {
  run: { id: text, source: text, setting: text, settings: text, prompt: text, led: lane, drafter: maybe(text), absent: byName(text), speed: number, threshold: maybe(number), ceiling: number,
    sampled: maybe(text), picture: maybe(PICTURE), lesson: maybe(LESSON), dialogue: maybe(text), turn: maybe(count), turns: maybe(list(TURN)) },
  prefill: { lane, seconds: duration, tokens: WORDS, ids: list(count), prompt_tokens: maybe(count), reused_tokens: maybe(count), image_tokens: maybe(count) },
  step: { lane, seconds: row(duration, duration, duration), tokens: WORDS },
  end: { totals: byName(text), show: count, charts: list(CHART), turns: maybe(list(TURN)), file: maybe(text), held: maybe(byName(Array.isArray)), grounding: maybe(GROUNDING) },
};

// What a step of the lane that is looked at has packed in its `picture`.
const EDGES = list(list(count));
const TREE = {
  data: list({ name: text, uid: text, x: list(maybe(number)), y: list(maybe(number)), text: maybe(list(text)), customdata: maybe(list(count)), marker: object }),
  layout: { meta: { rows: number, width: number, edges: EDGES, checked: maybe(text) }, xaxis: { range: RANGE }, yaxis: { range: RANGE }, shapes: SHAPES },
};
const DRAW = { node: count, child: maybe(count), place: count, uniform: number, acceptance: maybe(number), words: list(text), guessed: list(flag),
  p: list(number), q: list(number), starts: list(number) };
const STEP = {
  figure: both(drawable, TREE), pruned: maybe(both(drawable, { y: byName(list(number)), shapes: SHAPES, edges: EDGES, rows: number, range: RANGE })),
  say: WORDS, nodes, draws: maybe(list(DRAW)), focus: count,
};
const COLUMNS = { label: text, token: count, parent: whole, draft: maybe(number), rank: maybe(count), branch: maybe(number), entropy: maybe(number), choices: maybe(text), target: maybe(number),
  target_rank: maybe(count), choice: maybe(text), choice_prob: maybe(number), family: maybe(count), source: maybe(count), reason: count };

// Columns of one length, and a parent before each of its children.
function nodes(value) {
  if (!fits(value, { verdict: text, families: list(text), sources: maybe(list(text)), reasons: list(text) }) || !/^[oarunp-]+$/.test(value.verdict)) return false;
  const columns = Object.entries(COLUMNS).every(([name, shape]) => (name === "source" && !value.sources) || (list(shape)(value[name]) && value[name].length === value.verdict.length));
  return columns && value.parent.every((parent, node) => (node ? parent >= 0 && parent < node : parent === -1));
}

// Throws an `Error` of one line where a page's list of frames is none that can be played; `unpack` gives packed texts.
export async function checkFrames(list, unpack) {
  const held = await checkList(list, unpack);
  const lists = Object.values(held ?? {});
  const frames = [list, ...lists].flat().length;
  if (frames > MAX_FRAMES) throw new Error(`it has ${frames.toLocaleString("en")} frames, and at most ${MAX_FRAMES.toLocaleString("en")} are read`);
  for (const one of lists) {
    if (await checkList(one, unpack)) throw new Error("a run that it holds beside the first holds runs itself");
  }
}

// One run: its `run`, a prefill of every lane before its steps, its `end`. Returns the other runs that it holds.
async function checkList(list, unpack) {
  if (!Array.isArray(list) || !list.every(text)) throw new Error("it holds no list of frames");
  const frames = list.map((frame) => JSON.parse(frame));
  const led = frames[0]?.led;
  const begun = new Set();
  for (const [place, frame] of frames.entries()) {
    const kind = place === 0 ? "run" : place === list.length - 1 ? "end" : frame?.kind === "prefill" ? "prefill" : "step";
    const first = kind === "prefill" ? !begun.has(frame.lane) && begun.add(frame.lane) : kind !== "step" || begun.has(frame?.lane);
    const fit = first && frame?.kind === kind && fits(frame, FRAMES[kind]) && (kind !== "step" || frame.lane !== led || (await checkStep(frame, unpack)));
    if (!fit) throw new Error(`frame ${place + 1} is no ${kind} that this player can show; if an older specllava saved the page, open it by itself and save its run as JSON`);
  }
  if (!begun.has(led)) throw new Error("the lane that it shows is missing");
  return frames.at(-1).held;
}

async function checkStep(frame, unpack) {
  if (!fits(frame, LED)) return false;
  const step = JSON.parse(await unpack(frame.picture));
  if (!fits(step, STEP)) return false;
  const drawn = new Set(step.figure.data.flatMap(({ customdata }) => customdata ?? []));
  return step.nodes.verdict[step.focus] !== undefined && [...step.nodes.verdict].every((verdict, node) => verdict === "-" || drawn.has(node));
}
