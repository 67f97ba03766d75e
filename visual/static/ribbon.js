// The ribbon of doubt below the speculative words: a bar for every word that is said, as high as the draft was unsure
// before it, with marks where the tree branched and where a branch other than the draft's favourite saved words. The bars
// of a step are one path; the colour is that of the height (#doubt-colours).

const SVG = "http://www.w3.org/2000/svg";
const [BAR, TOP] = [26, 2]; // units of height: of the longest bar, above it
const FEWEST = 24; // words for which there is room at least

export function create(root, { player }) {
  const place = root.querySelector(".ribbon");
  for (const sign of root.querySelectorAll(".lanes-key i")) sign.append(forkSign());
  let ceiling = 2;
  let words = []; // of all steps that are known
  let parts = []; // bars and marks, by step
  let shown = 0; // steps whose words are shown
  let now = -1; // the step on show

  place.addEventListener("click", ({ target }) => {
    const step = target.closest("[data-step]")?.dataset.step;
    if (step !== undefined) player.jump(Number(step) - 1);
  });

  function begin(run) {
    ceiling = run.ceiling;
    [words, parts, shown, now] = [[], [], 0, -1];
    place.replaceChildren();
    place.classList.add("empty");
  }

  function draw(steps) {
    words = steps.flatMap(({ frame }, step) => wordsOf(frame, step));
    place.classList.toggle("empty", !words.some(({ doubt }) => doubt !== null));
    const room = Math.max(words.length, FEWEST);
    const svg = element("svg", { viewBox: `0 0 ${room} ${TOP + BAR}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(colours(), ...Array.from({ length: (words.at(-1)?.step ?? -1) + 1 }, (_, step) => barsOf(step)).flat());
    const marks = document.createElement("div");
    marks.className = "ribbon-marks";
    words.forEach(({ mark, step }, at) => mark && marks.append(marker(mark, step, at / room)));
    place.replaceChildren(svg, marks);
    parts = steps.map(() => []);
    for (const part of place.querySelectorAll("[data-step]")) {
      part.classList.add("later");
      parts[part.dataset.step].push(part);
    }
    [shown, now] = [0, -1];
  }

  function barsOf(step) {
    const places = words.flatMap((word, at) => (word.step === step ? [at] : []));
    if (!places.length) return [];
    const back = element("rect", { x: places[0], y: 0, width: places.length, height: TOP + BAR, class: "ribbon-back", "data-step": step });
    const d = places.map((at) => `M${at + 0.1},${TOP + BAR}v${-heightOf(words[at])}h0.8v${heightOf(words[at])}z`).join("");
    return [back, element("path", { d, class: "ribbon-bar", "data-step": step, fill: "url(#doubt-colours)" })];
  }

  const heightOf = ({ doubt }) => (doubt === null ? 0 : Math.max(0.06, Math.min(1, doubt / ceiling)) * BAR);

  // Words came or went: of those that are not said yet there is no doubt to be seen.
  function said() {
    const [steps, count] = [player.race.led(), player.race.said().length];
    if (steps.length !== parts.length) draw(steps);
    for (let step = Math.min(count, shown); step < Math.max(count, shown); step++) toggle(step, "later", step >= count);
    shown = count;
    place.setAttribute("aria-label", summary(words.filter((word) => word.step < shown)));
    step(null, player.index() + 1);
  }

  // Another step is shown: its words are marked.
  function step(_frame, index) {
    if (index === now) return;
    toggle(now, "now", false);
    toggle(index, "now", true);
    now = index;
  }

  const toggle = (step, name, on) => parts[step]?.forEach((part) => part.classList.toggle(name, on));

  return { begin, said, step };
}

function wordsOf(frame, step) {
  const doubt = frame.doubt ?? frame.ids.map(() => null);
  const marks = new Map((frame.marks ?? []).map(([kind, at]) => [at, kind]));
  return frame.ids.map((_, at) => ({ doubt: doubt[at] ?? null, mark: marks.get(at), step }));
}

function colours() {
  const made = element("linearGradient", { id: "doubt-colours", gradientUnits: "userSpaceOnUse", x1: 0, x2: 0, y1: TOP + BAR, y2: TOP });
  made.append(element("stop", { offset: 0, class: "ribbon-sure" }), element("stop", { offset: 1, class: "ribbon-unsure" }));
  return made;
}

function marker(kind, step, share) {
  const title = kind === "saved" ? "another branch was right here" : "the tree branched here";
  const mark = Object.assign(document.createElement("i"), { className: `mark-${kind}`, title });
  mark.append(forkSign());
  mark.dataset.step = step;
  mark.style.left = `${100 * share}%`;
  return mark;
}

export function forkSign() {
  const fork = element("svg", { viewBox: "0 0 8 11", "aria-hidden": "true" });
  fork.append(element("path", { d: "M4 11V6L1 1M4 6L7 1" }));
  return fork;
}

function summary(words) {
  const count = (kind) => words.filter(({ mark }) => mark === kind).length;
  return `Doubt of the draft word by word: ${words.length} words, ${count("branched") + count("saved")} at branches, ${count("saved")} of them where another guess than its favourite was right.`;
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
