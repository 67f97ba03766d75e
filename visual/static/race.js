// A race as the player holds it, read from the frames that Python wrote.

const ALONE = "target-only";

function newRace(run) {
  return {
    ...run,
    lead: run.lanes.at(-1),
    raced: run.lanes.length > 1,
    frames: 1,
    steps: [],
    words: [],
    passes: [],
    aloneWords: [],
    end: null,
    grounding: null,
  };
}

// Takes in the frames that are new. Returns whether there were any.
function readFrames(race, list) {
  const fresh = list.slice(race.frames).map((text) => JSON.parse(text));
  race.frames = list.length;
  for (const frame of fresh) takeFrame(race, frame);
  return fresh.length > 0;
}

function takeFrame(race, frame) {
  if (frame.kind === "end") race.end = frame;
  else if (frame.kind === "grounding") race.grounding = frame;
  else {
    if (frame.lane === ALONE) takeAlone(race, frame);
    if (frame.lane === race.lead) takeStep(race, frame);
  }
}

function takeAlone(race, { kind, words, seconds }) {
  race.aloneWords.push(...words);
  if (kind === "step") race.passes.push({ seconds: sum(seconds), end: (race.passes.at(-1)?.end ?? 0) + sum(seconds) });
}

function takeStep(race, frame) {
  const first = race.words.length;
  race.words.push(...frame.words);
  if (frame.kind !== "step") return;
  const start = race.steps.at(-1)?.end ?? 0;
  const [draft, verify] = frame.seconds;
  const end = start + sum(frame.seconds);
  const small = frame.words.filter(([, source]) => source.startsWith("small")).length;
  race.steps.push({
    ...frame,
    brought: [small, frame.words.length - small],
    first,
    start,
    drafted: start + draft,
    checked: start + draft + verify,
    end,
  });
}

// How many words the large model alone has written at a time of the other lane's clock.
function aloneCount(race, clock) {
  let low = 0;
  let high = race.passes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (race.passes[middle].end <= clock + 1e-9) low = middle + 1;
    else high = middle;
  }
  return Math.min(low + 1, race.aloneWords.length);
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const narrow = () => innerWidth <= 600;

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children); // texts of models enter as text nodes here and nowhere else
  return element;
}

// Styled segments of a sentence, as elements.
function segments(list) {
  return list.map(([style, text]) => (style ? html("span", { class: `w-${style}` }, text) : text));
}
