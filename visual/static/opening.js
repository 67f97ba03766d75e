// The opening: one recorded step in six beats, one button. Each beat is a phase of the step (step_phases.js) that is shown
// on the tree alone, with a sentence of its own; the seventh hands over to the other views.

const LEVEL = 260; // milliseconds from one level of guesses to the next
const PAIRS = 1600; // for which each guess stands beside the target's own word
const WORDS = 7; // of the answer before the step
const KEYS = { ArrowRight: 1, " ": 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };

export function create(root, { player, part, modules }) {
  const find = (name) => root.querySelector(`.opening-${name}`);
  const page = document.documentElement;
  const active = () => page.dataset.view === "opening";
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let run = null;
  let frame = null;
  let beats = [];
  let at = 0;
  let waiting = null; // the timer of the next level

  root.addEventListener("click", ({ target }) => {
    const action = target.closest("[data-opening]")?.dataset.opening;
    if (action === "next") go(1);
    if (action === "back") go(-1);
    if (action === "skip") leave();
    if (action === "run") leave("#question textarea");
    if (action === "lessons") leave(".learn-card button.label-wrap, #lessons a");
  });
  document.addEventListener("keydown", onKey, true); // wherever the focus is

  function begin(next) {
    [run, frame, at] = [next, null, 0];
    const picture = find("picture");
    picture.hidden = !run.picture;
    if (run.picture) picture.src = run.picture;
    find("asked").textContent = run.prompt;
  }

  // The step that a run opens with is the one that is told.
  function step(next) {
    const first = !frame;
    frame = next;
    if (first || active()) lay();
  }

  function lay() {
    const read = modules.step_phases.readStep(frame, run);
    const said = player.race.led().slice(0, player.index() + 1).flatMap((past) => past.frame.tokens.map(([text]) => text)).join("");
    beats = beatsOf(read, said.trim(), frame.tokens, modules.step_phases.phasesOf(read));
    if (!find("dots").children.length) find("dots").append(...beats.map(() => document.createElement("li")));
    show();
  }

  function go(by) {
    if (!frame || (at + by < 0)) return;
    if (at + by >= beats.length) return leave();
    at += by;
    show();
  }

  function show() {
    const { title, say, phases, brought = [] } = beats[at];
    find("title").textContent = title;
    find("say").replaceChildren(...say.map(styled));
    find("answer").replaceChildren(...[...beats[0].answer, ...brought].map(styled));
    [...find("dots").children].forEach((dot, place) => dot.classList.toggle("now", place === at));
    root.querySelector(".step").dataset.beat = String(at + 1);
    for (const button of root.querySelectorAll("[data-opening=back]")) button.disabled = at === 0;
    const last = at === beats.length - 1;
    find("on").hidden = last;
    find("end").hidden = !last;
    clearTimeout(waiting);
    if (active()) pose(calm ? phases.slice(-1) : phases);
  }

  // One phase after the other, as the guesses of a level come after those before it.
  function pose([phase, ...later]) {
    part("phases").pose(phase);
    if (later.length) waiting = setTimeout(() => pose(later), phase.kind === "accept" ? PAIRS : LEVEL);
  }

  function leave(focus) {
    clearTimeout(waiting);
    part("views").open("explain");
    if (focus) document.querySelector(focus)?.focus();
  }

  // Another view takes the whole tree; coming back begins at the first beat, at the run's own step.
  function seen(name) {
    clearTimeout(waiting);
    at = 0;
    if (name !== "opening") return part("phases").pose(null);
    if (player.end) player.jump(player.end.show);
    if (frame) lay();
  }

  function onKey(event) {
    if (!active() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && event.target.closest("button, a, summary, input, textarea")) return;
    if (event.key !== "Escape" && !(event.key in KEYS)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") leave();
    else go(KEYS[event.key]);
  }

  return { begin, step, view: seen };
}

// The beats of a step: each with a title, a sentence as pairs of style and text, the phases that are shown one after the
// other, and what it adds to the answer. `tokens` are those that the step brings, with their sources; `all` its phases.
function beatsOf(step, said, tokens, all) {
  const { words, kept, depth, nodes, draft } = step;
  const won = kept.find((id) => id && step.rank[id] > 1) ?? -1; // here the draft's second guess was right
  const fork = step.parent[won] ?? -1;
  const lost = won < 0 ? undefined : step.families[fork].find((id) => id !== won && nodes.includes(id));
  const ahead = depth[fork] || step.levels;
  const guess = (level, forks = []) => ({ kind: "guess", level, forks });
  const notes = (kind) => all.find((phase) => phase.kind === kind)?.notes ?? [];
  const line = tokens.slice(0, ahead).map(([text]) => text).join("").trim();
  const brought = tokens.map(([text, source]) => [source.startsWith("target") ? "own" : "word", text]);
  const wavers = lost === undefined ? [["", "Where it is not sure, it follows several words. Here it was sure all along, so the tree is one line."]]
    : [["strong", words[lost]], ["", ` (${share(draft[lost])}) or `], ["strong", words[won]], ["", ` (${share(draft[won])})? It is not sure, so it follows both: the guesses are a tree.`]];
  const chosen = lost === undefined ? [] : [["", " After "], ["strong", words[fork]], ["", " that is "], ["own", words[won]], ["", ", not "], ["lost", words[lost]], ["", "."]];
  const [accept, keep] = ["accept", "keep"].map((kind) => ({ kind, level: Infinity, forks: [], notes: notes("accept") }));
  return [
    { title: "One pass, one word", answer: [["", `… ${said.split(/\s+/).slice(-WORDS).join(" ")}`]], phases: [{ kind: "root", level: 0, forks: [] }],
      say: [["", "A large model reads the picture, the question and its answer so far. That is one pass, and it brings one word: "], ["own", words[0]], ["", "."]] },
    { title: "A small model runs ahead", phases: Array.from({ length: ahead }, (_, level) => guess(level + 1)),
      say: [["", "It is quick, and was taught to talk like the large one. It guesses the next words: "], ["strong", line], ["", " …"]] },
    { title: "It wavers, and branches", phases: [guess(Infinity, fork < 0 ? [] : [fork])], say: wavers },
    { title: "One pass of the large model checks them all", phases: [{ kind: "check", level: Infinity, forks: [] }],
      say: [["", `It reads all ${nodes.length - 1} guesses side by side, in one pass. On a GPU that takes hardly longer than one word.`]] },
    { title: "Its own word appears over every guess", phases: [{ kind: "check", level: Infinity, forks: [], notes: notes("check") }],
      say: [["", "The same pass tells which word it would have written itself after each guess."], ...chosen] },
    { title: "The equal ones stay, one more comes free", brought, phases: [accept, keep],
      say: [["", `One pass brought ${tokens.length} words or pieces of words in place of one. Each is the large model's own choice, so the answer stays the same, word for word.`]] },
    { title: "Now you", brought, phases: [keep], say: [["", "Watch both models race, take the lessons, or measure it."]] },
  ];
}

const share = (probability) => `${Math.round(100 * probability)} %`;

function styled([style, text]) {
  return Object.assign(document.createElement("span"), { textContent: text, className: style ? `opening-is-${style}` : "" });
}
