// A against B: a run that was pinned, and the one that came after it. Settings, numbers, and the same words aligned with
// the doubt of both drafts; a word opens both trees (versus_trees.js). Runs are lists of frames and stay in the browser.

const PIN = "Pin as A";
const SAID = { branched: ", the tree branched here", saved: ", another branch was right here" };
const SOURCES = { accepted: "drafted and taken", target: "the target's own", plain: "the target's own" };
const NUMBERS = [ // label, name in the end frame, digits, unit, whether the difference is a share
  ["tokens per target pass (τ)", "tau", 2, "", true], ["target passes", "passes", 0, "", false],
  ["speed-up while answering, by the clock", "speedup", 2, "×", true],
  ["the same by counted passes at one set of costs", "counted", 2, "×", true], ["tokens saved by another branch", "saved", 0, "", false],
];
const WAITING = "A is pinned. Change the rule, a setting, the draft or the temperature and run again: that run will be B.";

export function create(root, { plotly, modules, frames }) {
  const { compared, charts, files, pays_math: math, ribbon, versus_trees: trees } = modules;
  const card = root.querySelector(".versus");
  const find = (selector) => card.querySelector(selector);
  const pin = root.querySelector(".pin");
  const go = root.querySelector(".versus-go");
  const words = find(".gloss-words");
  const held = { a: null, b: null }; // sides, see `sideOf`
  let present = null; // frames of the run on show, once it is over
  let opening = Promise.resolve(); // a run that brings its A along is still being unpacked

  const actions = {
    pin: () => hold({ a: sideOf(alone(present)), b: held.b }),
    unpin: () => hold({ a: null, b: null }),
    swap: () => hold({ a: held.b, b: held.a }),
    go: () => card.scrollIntoView({ block: "start" }),
  };
  for (const place of [root.querySelector(".stage"), card]) {
    place.addEventListener("click", ({ target }) => actions[target.closest("[data-versus]")?.dataset.versus]?.());
  }
  for (const sign of card.querySelectorAll(".gloss-key .fork")) sign.append(ribbon.forkSign());
  words.addEventListener("click", ({ target }) => target.closest("[data-at]") && open(Number(target.closest("[data-at]").dataset.at)));
  words.addEventListener("keydown", walk);

  function begin(run) {
    present = null;
    held.b = null;
    opening = run.against ? against(run) : Promise.resolve();
    show();
  }

  async function against(run) {
    const list = JSON.parse(await files.unpacked(run.against));
    held.a = sideOf(list.map((frame) => JSON.stringify(frame)), run.a_name);
  }

  async function end() {
    const list = frames();
    const run = runOf(list);
    await opening;
    if (run.id !== runOf(frames()).id) return; // another run replaced it
    present = list;
    if (held.a && held.a.run.id !== run.id) held.b = sideOf(alone(list), run.b_name);
    show();
  }

  function hold(sides) {
    Object.assign(held, sides);
    if (held.b?.run.id === held.a?.run.id) held.b = null;
    show();
  }

  function show() {
    const { a, b } = held;
    const pinned = a && present && a.run.id === runOf(present).id;
    pin.disabled = !present || pinned;
    pin.textContent = pinned ? "Pinned as A ✓" : PIN;
    card.hidden = !a;
    go.hidden = !a || !b;
    if (!a) return;
    find("[data-versus=swap]").disabled = !b;
    find(".versus-sides").replaceChildren(...[["A", a], ["B", b]].flatMap(([name, side]) => [
      compared.make("dt", "", name), compared.make("dd", "", side ? `${side.name} · ${side.run.setting}` : "the next run"),
    ]));
    find(".versus-result").hidden = !b;
    find(".versus-note").textContent = b ? compare(a, b) : WAITING;
  }

  // Fills numbers and words; returns what to say about the answers.
  function compare(a, b) {
    tell([a.numbers, b.numbers]);
    find(".versus-gain").textContent = "";
    price(a, b);
    const stranger = unlike(a.run, b.run);
    const shared = stranger ? 0 : common(a.words, b.words);
    find(".versus-words").hidden = !shared;
    find(".closeups").hidden = true;
    const ceiling = Math.max(a.run.ceiling, b.run.ceiling);
    find(".versus-ceiling").textContent = `${ceiling.toFixed(1)}+ nats`;
    words.replaceChildren(...a.words.slice(0, shared).map((word, at) => button(word, at, [a, b], ceiling)));
    if (words.firstChild) words.firstChild.tabIndex = 0;
    return stranger || parting(a.words, b.words, shared);
  }

  function button({ text, shown, end }, at, sides, ceiling) {
    const marks = sides.map((side, place) => ({
      ...markOf(side.words[at], "AB"[place], ceiling), sign: side.words[at].mark ? ribbon.forkSign() : "",
    }));
    const made = compared.markedWord({ text: shown, glued: !end && !/^\s/.test(text), marks }, "button");
    Object.assign(made, { type: "button", tabIndex: -1 });
    made.dataset.at = at;
    return made;
  }

  // Arrow keys walk over the words, which are one stop of the Tab key.
  function walk(event) {
    event.stopPropagation(); // arrow keys are the player's elsewhere
    const buttons = [...words.children];
    const now = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined || !buttons[next]) return;
    event.preventDefault();
    buttons[next].focus();
    for (const button of buttons) button.tabIndex = button === buttons[next] ? 0 : -1;
  }

  function tell(numbers) {
    const rows = NUMBERS.filter(([, key]) => numbers.some((side) => side[key] != null));
    find(".table-scroll").replaceChildren(charts.tableOf(["", "A", "B", "Δ"], rows.map((row) => numberRow(row, ...numbers))));
  }

  // What the passes of both sides are worth at the costs of the quicker run, in which a busy machine did least harm. Models
  // that differ have no costs in common.
  async function price(...sides) {
    const steps = await Promise.all(sides.map(unpackedSteps));
    const taken = sides.map(({ alone }, side) => (alone.length ? math.measured(alone, steps[side]) : null)).filter(Boolean);
    const [costs] = sides[0].run.setting === sides[1].run.setting ? taken.sort((one, other) => one.one - other.one) : [];
    if (!costs || held.a !== sides[0] || held.b !== sides[1]) return;
    const worth = (own) => (own.length ? math.priced(own, costs).speedup : 1);
    const counted = steps.map(math.stepsOf);
    tell(sides.map(({ numbers }, side) => ({ ...numbers, counted: worth(counted[side]) })));
    if (counted.every((own) => own.length)) find(".versus-gain").textContent = `B against A: ${math.gainSentence(...counted.map((own) => math.sideOf(own, costs.level)), costs)}`;
  }

  const unpackedSteps = ({ steps }) => Promise.all(steps.map(async (frame) => ({ ...frame, ...(frame.picture && JSON.parse(await files.unpacked(frame.picture))) })));

  async function open(at) {
    for (const button of words.children) button.setAttribute("aria-pressed", String(Number(button.dataset.at) === at));
    find(".closeups").hidden = false;
    await trees.show(find(".closeups"), [held.a, held.b], at, modules, await plotly());
  }

  // What a saved run or page holds besides: the frames of both sides, or null.
  const both = () => (held.a && held.b ? { a: held.a, b: held.b, same: !unlike(held.a.run, held.b.run) } : null);

  show();
  return { begin, end, both };
}

const runOf = ([first]) => JSON.parse(first);

// A run without what it was compared with when it was opened.
function alone([first, ...rest]) {
  const { against, a_name, b_name, ...run } = JSON.parse(first);
  return [JSON.stringify(run), ...rest];
}

// What the comparison needs of a run that is over. A word's `step` counts the passes that gave words, the prompt's first.
function sideOf(list, name) {
  const parsed = list.map((text) => JSON.parse(text));
  const [run] = parsed;
  const steps = parsed.filter(({ kind, lane }) => (kind === "prefill" || kind === "step") && lane === run.led);
  const alone = parsed.filter(({ kind, lane }) => (kind === "prefill" || kind === "step") && lane === "target-only");
  const words = steps.flatMap((frame, step) => frame.tokens.map(([text, source], place) => ({
    text, source, ...legible(text, source), step, place, id: frame.ids[place], doubt: frame.doubt?.[place] ?? null,
    mark: frame.marks?.find(([, at]) => at === place)?.[0],
  })));
  return { list, run, steps, alone, words, numbers: parsed.at(-1).numbers ?? {}, name: name || run.settings };
}

// What stands for a token: a character comes with its last piece, the pieces before it have no text.
function legible(text, source) {
  const end = source.endsWith("end");
  return { end, shown: end ? "■" : text.trim() || (text ? "␣" : "…") };
}

function common(a, b) {
  const parted = a.findIndex(({ id }, at) => id !== b[at]?.id);
  return parted < 0 ? a.length : parted;
}

// Why two runs say different things from the start; "" if they answer the same question about the same picture.
function unlike(a, b) {
  if (a.prompt !== b.prompt) return "A and B answer different questions: only the numbers stand beside each other.";
  if (a.picture && b.picture && a.picture !== b.picture) return "A and B are about different pictures: only the numbers stand beside each other.";
  return "";
}

function parting(a, b, shared) {
  if (shared === a.length && shared === b.length) return `Equal ✓: both say the same ${shared} tokens.`;
  const said = (words) => (words[shared] ? `“${words[shared].shown}”` : "nothing more");
  return `The answers part at token ${shared + 1}: A says ${said(a)}, B says ${said(b)}. Aligned up to there.`;
}

function numberRow([label, key, digits, unit, share], a, b) {
  const written = (value) => (value == null ? "–" : value.toFixed(digits) + unit);
  return [label, written(a[key]), written(b[key]), difference(a[key], b[key], share)];
}

function difference(a, b, share) {
  if (a == null || b == null || (share && !a)) return "–";
  const text = (share ? 100 * (b / a - 1) : b - a).toFixed(share ? 1 : 0);
  return `${Number(text) > 0 ? "+" : ""}${text.replace(/^-(?=0(\.0)?$)/, "").replace("-", "−")}${share ? " %" : ""}`;
}

function markOf({ doubt, mark, source, step, place }, name, ceiling) {
  const said = SOURCES[source.split(" ")[0]];
  const unsure = doubt === null ? "no draft was asked" : `doubt ${doubt.toFixed(2)} nats`;
  return {
    share: doubt === null ? null : Math.min(1, doubt / ceiling),
    className: `${place === 0 ? "starts" : ""} ${mark ? `mark-${mark}` : ""}`, title: `${name}, ${step ? `step ${step}` : "the prompt's pass"}: ${said}, ${unsure}${SAID[mark] ?? ""}`,
  };
}
