// A race as the player holds it, read from the frames that Python wrote.

const ALONE = "target-only";

function newRace(run) {
  const empty = { steps: [], words: [], passes: [], aloneWords: [], end: null, grounding: null };
  return { ...run, ...empty, lead: run.lanes.at(-1), raced: run.lanes.length > 1, frames: 1 };
}

// Takes in the frames that are new. Returns whether there were any.
function readFrames(race, list) {
  const fresh = list.slice(race.frames).map((text) => JSON.parse(text));
  Object.assign(race, { frames: list.length, list });
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
  const brought = [small, frame.words.length - small];
  race.steps.push({ ...frame, brought, first, start, drafted: start + draft, checked: start + draft + verify, end });
}

// How many passes the large model alone has ended at a time of the other lane's clock, and words it has written.
const passesEnded = (race, clock) => race.passes.filter(({ end }) => end <= clock + 1e-9).length;
const aloneCount = (race, clock) => Math.min(passesEnded(race, clock) + 1, race.aloneWords.length);

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

// --- both lanes on one scale, a block per pass green, drafting blue; ticks of the slider ----------------

const BAR = 1000; // units of a bar's width

function createTimeline(root) {
  const time = root.querySelector(".time");
  const [above, below] = time.querySelectorAll("svg");
  const [first, second] = time.querySelectorAll(".passes");
  const [aloneName, leadName] = time.querySelectorAll(".lane-name");
  let race = null;
  let built = "";

  function begin(next) {
    race = next;
    built = "";
  }

  function build() {
    const state = `${race.passes.length} ${race.steps.length} ${race.end ? 1 : 0}`;
    if (state === built) return;
    built = state;
    const last = Math.max(race.passes.at(-1)?.end ?? 0, race.steps.at(-1)?.end ?? 0) || 1;
    const unit = BAR / last;
    above.replaceChildren(
      ...race.passes.map(({ end, seconds }) => blockAt((end - seconds) * unit, seconds * unit, "large")),
    );
    below.replaceChildren(
      ...(race.lead === ALONE ? [] : race.steps).flatMap(({ start, drafted, end }) => [
        blockAt(start * unit, (drafted - start) * unit, "small"),
        blockAt(drafted * unit, (end - drafted) * unit, "large"),
      ]),
    );
    aloneName.textContent = narrow() ? "alone" : "large model alone";
    leadName.textContent = narrow() ? "with small one" : "with the small one";
    aloneName.hidden = first.hidden = !race.lanes.includes(ALONE);
    leadName.hidden = second.hidden = race.lead === ALONE;
    above.style.display = first.hidden ? "none" : "";
    below.style.display = second.hidden ? "none" : "";
  }

  // Fills both bars up to a time of the clock; `passes`: the upper one up to a number of passes, and no other; without
  // `race` the lower one alone; `timed`: their seconds are named.
  function show(clock, { passes = null, timed = false, race: both = true } = {}) {
    build();
    const took = timed && race.end ? race.end.took : null; // by lane, in words
    const past = took ? race.passes.length : passesEnded(race, clock);
    const alone = passes ?? past;
    [...above.children].forEach((block, number) => block.classList.toggle("on", number < alone));
    let done = 0;
    [...below.children].forEach((block, number) => {
      const step = race.steps[number >> 1];
      const begun = number % 2 ? step.drafted : step.start;
      const on = passes === null && clock > begun + 1e-9;
      block.classList.toggle("on", on);
      if (on && number % 2) done += 1;
    });
    count(first, alone, race.end ? race.passes.length : alone, took?.[ALONE]);
    count(second, took ? race.steps.length : done, race.end ? race.steps.length : done, took?.[race.lead]);
    time.classList.toggle("only-alone", passes !== null);
    time.classList.toggle("only-lead", passes === null && !both);
  }

  function count(element, number, of, took) {
    const passes = ` ${of === 1 ? "pass" : "passes"}`;
    const rest = number === of ? passes + (took && !narrow() ? `, ${took}` : "") : ` of ${of}${narrow() ? "" : passes}`;
    element.replaceChildren(html("b", {}, String(number)), rest);
  }

  return { begin, show };
}

function blockAt(x, width, name) {
  return svg("rect", { x: x + 0.7, y: 0, width: Math.max(0.5, width - 1.6), height: 12, class: name });
}

// Ticks of the slider: tokens per step with a cap of the large model's own, or plain dots.
function drawTicks(slide, rail, count, at, heights) {
  const width = rail || slide.clientWidth; // it was hidden before
  const base = heights ? 33 : 20;
  const place = (number) => (count < 2 ? width / 2 : PAD + ((width - 2 * PAD) * number) / (count - 1));
  const made = `${width} ${count} ${heights ? heights.flat().join() : ""}`;
  if (slide.dataset.made !== made) {
    slide.dataset.made = made;
    const line = (name) => svg("path", { d: `M${PAD} ${base}H${width - PAD}`, class: name });
    const ticks = heights ? barTicks(heights, place, base, width) : dotTicks(count, place, base);
    slide.replaceChildren(line("rail"), line("rail done"), ...ticks, svg("circle", { cy: base, r: 8, class: "thumb" }));
  }
  for (const tick of slide.children) if (tick.dataset.at) tick.classList.toggle("on", Number(tick.dataset.at) <= at);
  slide.children[1].setAttribute("d", `M${PAD} ${base}H${place(at)}`);
  slide.lastElementChild.setAttribute("cx", place(at));
}

const PAD = 10; // pixels at both ends of the slider

function dotTicks(count, place, base) {
  return Array.from({ length: count }, (_, number) =>
    svg("circle", { cx: place(number), cy: base, r: 4, class: "dot", "data-at": number }),
  );
}

function barTicks(heights, place, base, width) {
  const unit = Math.min(2, 26 / Math.max(1, ...heights.map(sum)));
  const bar = clamp((width - 2 * PAD) / heights.length - 2, 1, 8);
  return heights.flatMap(([small, large], number) => {
    const shared = { x: place(number) - bar / 2, width: bar, "data-at": number };
    const top = base - 6 - (small + large) * unit;
    return [
      svg("rect", { ...shared, y: base - 5 - small * unit, height: small * unit, class: "small" }),
      svg("rect", { ...shared, y: top, height: large ? Math.max(1.5, large * unit) : 0, class: "large" }),
    ];
  });
}
