// The opening: one recorded step in six beats, one button. Each beat is a phase of the step (step_phases.js) that is shown
// on the tree alone, with a sentence of its own; the seventh hands over to the other views.

const LEVEL = 260; // milliseconds from one level of guesses to the next
const PAIRS = 1600; // for which each guess is compared with the target's own word
const WORDS = 6; // of the answer before the step
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
    if (action === "run") race();
    if (action === "lessons") setTimeout(lessons); // a click elsewhere closes the menu
  });
  document.addEventListener("keydown", onKey, true); // wherever the focus is

  function begin(next) {
    [run, frame, at] = [next, null, 0];
    const picture = find("picture");
    picture.hidden = !run.picture;
    if (run.picture) picture.src = run.picture;
    find("asked").textContent = run.prompt;
  }

  // The beats are of the step that the run opens with.
  function step(next) {
    const first = !frame;
    frame = next;
    if (first || active()) lay();
  }

  function lay() {
    const read = modules.step_phases.readStep(frame, run);
    const said = player.race.led().slice(0, player.index() + 1).flatMap((past) => past.frame.tokens.map(([text]) => text));
    beats = beatsOf(read, said, frame.tokens, modules.step_phases.phasesOf(read));
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

  function leave() {
    clearTimeout(waiting);
    part("views").open("explain");
  }

  // Runs the question; where no model answers, plays the recorded race.
  function race() {
    leave();
    const run = document.querySelector("#run:not(:disabled)");
    if (run) return run.click();
    player.actions.first();
    player.play();
  }

  // Opens the menu of lessons, or goes to their list.
  function lessons() {
    leave();
    const menu = document.querySelector(".learn-card button.label-wrap");
    if (menu && !menu.classList.contains("open")) menu.click();
    (menu ?? document.querySelector("#lessons a"))?.focus();
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
  const { words, kept, depth, nodes, sampled } = step;
  const reached = ({ node, beyond }) => kept.includes(beyond ? node : step.parent[node]); // what comes after a wrong guess is of no account
  const phase = (kind) => ({ kind, level: Infinity, forks: [], notes: (all.find((one) => one.kind === kind)?.notes ?? []).filter(reached) });
  const brought = tokens.map(([text, source]) => [source.startsWith("target") ? "own" : "word", text]);
  const first = { title: "One pass, one word", answer: [["", `… ${said.slice(0, -1).join("").trim().split(/\s+/).slice(-WORDS).join(" ")}`], ["own", said.at(-1)]], phases: [{ kind: "root", level: 0, forks: [] }],
    say: [["", "A large model reads the picture, the question and its answer so far. That is one pass, and it brings one word: "], ["own", words[0]], ["", "."]] };
  const last = { title: "Now you", brought, phases: [{ ...phase("accept"), kind: "keep" }], say: [["", "Watch the large model race against itself with the small one, take the lessons, or measure what it brings."]] };
  if (nodes.length < 2) return [first, last]; // nothing was guessed
  const fork = forkOf(step);
  const ahead = depth[fork] || step.levels;
  const line = tokens.slice(0, Math.min(ahead, kept.length - 1)).map(([text]) => text).join("").trim() || words[nodes[1]];
  const guesses = nodes.length - 1;
  return [
    first,
    { title: "A small model runs ahead", phases: Array.from({ length: ahead }, (_, level) => ({ kind: "guess", level: level + 1, forks: [] })),
      say: [["", "It is quick, though not free, and was taught to talk like the large one. It guesses the next words, or pieces of words: "], ["strong", line], ["", " …"]] },
    { title: fork < 0 ? "The small model is sure, and goes straight on" : "The small model wavers, and branches", phases: [{ kind: "guess", level: Infinity, forks: fork < 0 ? [] : [fork] }],
      say: wavers(step, fork) },
    { title: "One pass of the large model checks them all", phases: [{ ...phase("check"), notes: [] }],
      say: [["", `It reads ${guesses === 1 ? "the guess" : `all ${guesses} guesses side by side`}, in one pass, each after the words on its own path. On a GPU most of a pass goes into fetching the model from memory, and that happens once for all of them.`]] },
    { title: sampled ? "The large model's own odds appear at the guesses" : "The large model's own words appear at the guesses", phases: [phase("check")], say: sampled
      ? [["", "The same pass tells how likely the large model finds each guess. A coin with these odds decides whether it stays."]]
      : [["", "The same pass tells which word it would have written there itself."], ...chosen(step, fork)] },
    { title: titleOf(step), brought,
      phases: [phase("accept"), last.phases[0]], say: harvest(step, tokens.length) },
    last,
  ];
}

// The node after which the draft tried several words: where its second guess was right, else on the accepted path, else any.
function forkOf({ parent, kept, rank, families, nodes }) {
  const won = kept.find((id) => id && rank[id] > 1) ?? -1;
  const branches = (id) => families[id].filter((child) => nodes.includes(child)).length > 1;
  return won > 0 && branches(parent[won]) ? parent[won] : [...kept, ...nodes].find(branches) ?? -1;
}

// Two guesses after a node: the draft's favourite, and the accepted one or else its next.
function rivals({ families, nodes, kept }, fork) {
  const [favourite, ...others] = families[fork].filter((id) => nodes.includes(id));
  return [favourite, others.find((id) => kept.includes(id)) ?? others[0]];
}

function wavers(step, fork) {
  if (fork < 0) return [["", "Where it is not sure it follows several words. Here it tries one after each, so the tree is one line."]];
  const [one, other] = rivals(step, fork);
  const odds = (id) => (step.draft[id] === null ? "" : ` (${share(step.draft[id])})`);
  return [["strong", step.words[one]], ["", `${odds(one)} or `], ["strong", step.words[other]], ["", `${odds(other)}? It is not sure, so it follows both: the guesses are a tree. The brighter a dot, the less sure it is of what comes next.`]];
}

function chosen(step, fork) {
  const own = step.says[fork];
  if (fork < 0 || own == null) return [];
  const [one, other] = rivals(step, fork);
  const lost = [one, other].find((id) => step.words[id] !== own.trim());
  return [["", " After "], ["strong", step.words[fork]], ["", " that is "], ["own", own.trim()], ["", ", not "], ["lost", step.words[lost]], ["", "."]];
}

function titleOf({ kept, next }) {
  if (kept.length < 2) return "No guess was right, and one word comes all the same";
  return next < 0 ? "Equal guesses stay" : "Equal guesses stay, and the pass adds a word";
}

function harvest({ kept, words, next, sampled, rank, families, parent, nodes }, count) {
  const right = kept.length - 1;
  const guesses = `${right} ${right === 1 ? "guess" : "guesses"}`;
  const start = sampled ? `${guesses} stayed` : right ? `${guesses} ${right === 1 ? "was" : "were"} the large model's own` : "The wrong guess goes, and all that came after it";
  const more = next < 0 ? [["", "."]] : [["", ", and the pass wrote one word more: "], ["own", words[next]], ["", "."]];
  const sum = ` That is ${count} ${count === 1 ? "word" : "words or pieces"} from one pass`;
  const won = kept.findIndex((id) => id && rank[id] > 1);
  const favourite = won > 0 && !sampled ? families[parent[kept[won]]].find((id) => nodes.includes(id)) : undefined;
  const line = favourite === undefined ? [["", "."]] : [["", "; a single line would have followed "], ["lost", words[favourite]], ["", ` and brought ${won}.`]];
  const same = sampled ? " The coin keeps every answer as likely as without the small model." : " All are the large model's own choice: the answer is the same, word for word.";
  return [["", start], ...more, ["", sum], ...line, ["", same]];
}

const share = (probability) => `${Math.round(100 * probability)} %`;

function styled([style, text]) {
  return Object.assign(document.createElement("span"), { textContent: text, className: style ? `opening-is-${style}` : "" });
}
