// The ribbon of doubt under the speculative words: a bar for every word, as high as the draft was unsure before it, with
// marks where the tree branched and where a branch other than the draft's favourite saved words.

const SVG = "http://www.w3.org/2000/svg";
const [BAR, TOP, MARKS] = [26, 2, 11]; // units of height: of the longest bar, above it, for the marks below

export function create(root, { player }) {
  const place = root.querySelector(".ribbon");
  const key = root.querySelector(".ribbon-key");
  for (const sign of key.querySelectorAll("i")) sign.append(forkSign());
  let ceiling = 2;
  let now = null;

  place.addEventListener("click", ({ target }) => {
    const step = target.closest("[data-step]")?.dataset.step;
    if (step !== undefined) player.jump(Number(step) - 1);
  });

  function begin(run) {
    ceiling = run.ceiling;
    now = null;
    place.replaceChildren();
    place.hidden = key.hidden = true;
  }

  // Frames of the words that may be shown: of a run that comes in, those of the steps so far; else all.
  const reached = () => (player.firstPass ? player.race.led().slice(0, now === null ? 0 : player.index() + 2) : player.race.led());

  function draw() {
    const words = reached().flatMap(({ frame }, step) => wordsOf(frame, step));
    place.hidden = key.hidden = !words.some(({ doubt }) => doubt !== null);
    if (place.hidden) return;
    const svg = element("svg", { viewBox: `0 0 ${Math.max(words.length, 24)} ${TOP + BAR + MARKS}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    words.forEach((word, at) => svg.append(...bar(word, at)));
    const marks = document.createElement("div");
    marks.className = "ribbon-marks";
    words.forEach(({ mark, step }, at) => mark && marks.append(marker(mark, step, at / Math.max(words.length, 24))));
    place.replaceChildren(svg, marks);
    place.setAttribute("aria-label", summary(words));
  }

  function bar({ doubt, step }, at) {
    const height = doubt === null ? 0 : Math.max(0.06, Math.min(1, doubt / ceiling)) * BAR;
    const back = element("rect", { x: at, y: 0, width: 1, height: TOP + BAR, class: "ribbon-back", "data-step": step });
    const front = element("rect", { x: at + 0.1, y: TOP + BAR - height, width: 0.8, height, class: "ribbon-bar", "data-step": step });
    front.style.setProperty("--doubt", doubt === null ? 0 : Math.min(1, doubt / ceiling));
    return [back, front];
  }

  // Another step is shown: its words are marked.
  function step(frame, index) {
    now ??= 0;
    const count = reached().length;
    if (now !== count) draw();
    now = count;
    for (const bar of place.querySelectorAll("rect, i")) bar.classList.toggle("now", Number(bar.dataset.step) === index);
  }

  return { begin, step, end: draw };
}

function wordsOf(frame, step) {
  const doubt = frame.doubt ?? frame.ids.map(() => null);
  const marks = new Map((frame.marks ?? []).map(([kind, at]) => [at, kind]));
  return frame.ids.map((_, at) => ({ doubt: doubt[at] ?? null, mark: marks.get(at), step }));
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
