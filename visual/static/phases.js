// Inside a step: the phases between two states of the answer, stepped through by hand or played, with the attention mask
// and the KV cache beside the tree. Outside of it the whole tree with its verdict is on show. Others may pose a phase on the
// tree alone.

const SLOW = 0.05; // playing speed up to which an opened step is played phase by phase
const DWELL = 45; // milliseconds of a phase at full speed: 0.9 s at a twentieth
const NARROW = 760; // pixels of a window below which mask and cache are folded below their headings
const UNJUDGED = ["root", "guess", "prune"]; // phases before the target's pass
const TAIL = 26; // letters of the answer so far in the strip

export function create(root, { player, step: view, modules }) {
  const find = (selector) => root.querySelector(selector);
  const [chart, bar, toggle, inside] = [".tree", ".phases", ".inside-toggle", ".inside"].map(find);
  const { readStep, phasesOf } = modules.step_phases;
  const drawing = modules.phase_drawing.createDrawing(chart, modules.phase_words);
  const mask = modules.mask.createMask(find(".mask"), { look: lookAt, choose: (node) => view.choose(node) });
  const cache = modules.kv_cache.createCache(find(".kv-cache"), "KV cache of the target");
  const [list, caption, pairs] = [styled("ol", "phase-list"), styled("p", "phase-said"), styled("p", "phase-pairs offscreen")]; // the caption replaces the sentence
  let run = null;
  let frame = null; // the step on show
  let drawn = null; // the step that Plotly has drawn
  let step = null;
  let phases = [];
  let at = 0;
  let open = false;
  let judged = false; // the mask was opened for the target's pass
  let since = 0; // when the phase began, while it is played
  let last = false; // the next step to come is entered at its end
  let posed = null; // a phase that is shown on the tree alone
  let looked = 0; // the node whose row is lit

  bar.append(
    button("Previous phase", "‹", () => go(-1), "phase-back"), list, button("Next phase", "›", () => go(1), "phase-on"),
    button("Back to the result of the step", "result", close, "phase-leave"),
  );
  caption.setAttribute("aria-live", "polite");
  find(".sentence").after(caption, pairs);
  toggle.addEventListener("click", () => (open ? close() : enter()));
  find(".stage").addEventListener("keydown", key, true); // before the player, which has the arrows without Shift
  chart.addEventListener("drawn", ({ detail }) => {
    if (!drawn) chart.on("plotly_afterplot", again); // zooming and halos write some attributes anew
    drawn = detail;
    again();
  });
  chart.addEventListener("node", ({ detail }) => light(detail));

  // --- which phase ------------------------------------------------------------------------------

  function begin(next) {
    if (open && (next.live || next.lesson)) close(); // a race that runs waits for nobody, and a lesson opens its own phase
    posed = null;
    drawing.clear();
    [run, frame, step] = [next, null, null];
    toggle.disabled = true;
  }

  function show(next, _index, _count, playing) {
    frame = next;
    toggle.disabled = false;
    if (!open) return;
    lay();
    const verdict = Math.max(0, phases.findIndex(({ kind }) => kind === "accept"));
    set(last ? phases.length - 1 : playing && Number(player.speed.value) > SLOW ? verdict : 0);
    last = false;
  }

  // Goes inside the step on show, to the first phase of a kind, or to that of a level.
  function enter(kind = "root", level = null) {
    if (!frame) return;
    const first = !open;
    open = true;
    posed = null;
    if (first) reveal();
    set(Math.max(0, phases.findIndex((phase) => phase.kind === kind && (level === null || phase.level === level))));
    if (!first) return;
    view.redraw(); // the tree has another room now
    if (bar.getBoundingClientRect().top < 0) find(".step").scrollIntoView({ block: "start" });
  }

  function reveal() {
    lay();
    for (const slot of places()) slot.hidden = false;
    judged = false;
    mask.open(false);
    mark();
  }

  // Goes back to the result of the step.
  function close() {
    if (!open) return;
    open = false;
    drawing.clear();
    for (const slot of places()) slot.hidden = true;
    mark();
    player.tell("phase", null, frame);
    view.redraw();
  }

  const places = () => [bar, inside, find(".mask"), find(".kv-cache")];

  function mark() {
    toggle.setAttribute("aria-expanded", String(open));
    find(".step").classList.toggle("is-inside", open);
  }

  // Another phase, on into the next step and back into the one before.
  function go(by) {
    if (!open) return enter();
    if (!step) return undefined;
    player.pause();
    const to = at + by;
    if (to >= 0 && to < phases.length) return set(to);
    last = to < 0 && player.index() > 0;
    player.jump(player.index() + by);
    last = false;
  }

  function set(to) {
    at = to;
    since = performance.now();
    const phase = phases[at];
    [...list.children].forEach(({ firstChild }, place) => firstChild.setAttribute("aria-current", place === at ? "step" : "false"));
    const now = list.children[at].firstChild;
    list.scrollLeft = now.offsetLeft - list.clientWidth / 2;
    caption.textContent = phase.say;
    pairs.textContent = phase.pairs ?? "";
    mask.reach(phase.level);
    unfold(!UNJUDGED.includes(phase.kind));
    cache.mark((place) => columnState(place, phase), cacheNote(phase));
    light(looked);
    redraw();
    player.tell("phase", phase.kind, frame);
  }

  // The mask opens as the target's pass begins, and folds before it; in between it stays as one leaves it.
  function unfold(now) {
    if (now !== judged) mask.open(now && window.innerWidth > NARROW);
    judged = now;
  }

  // While it plays, the clock waits for the phases of an opened step.
  function holds(now) {
    if (!step || !open || Number(player.speed.value) > SLOW) return false;
    const over = now - since >= DWELL / Number(player.speed.value);
    if (over && at === phases.length - 1) return false;
    if (over) set(at + 1);
    return true;
  }

  // --- what is shown ------------------------------------------------------------------------------

  function lay() {
    step = readStep(frame, run);
    phases = phasesOf(step);
    list.replaceChildren(...phases.map(item));
    mask.lay(step, frame.cached);
    const { prompt_tokens: prompt, reused_tokens: reused, image_tokens: image = 0 } = player.race.led()[0].frame;
    const old = reused < image ? Math.min(reused, prompt - image) : reused - image; // of the text; a picture is reused as a whole
    const said = player.race.led().slice(0, player.index() + 1).flatMap((past) => past.frame.tokens.map(([text]) => text)).slice(0, -1).join("");
    const blocks = [{ kind: "picture", count: image, text: "picture" }, { kind: "reused", count: old, text: "reused" },
      { kind: "read", count: prompt - image - old, text: image ? "question" : run.picture ? "picture and question" : "prompt" },
      { kind: "said", count: frame.cached - prompt, text: said.length > TAIL ? `…${said.slice(-TAIL)}` : said }];
    cache.lay(blocks, step.nodes.map((node) => step.words[node]));
  }

  function item(phase, place) {
    const { kind, level } = phase;
    const first = kind === "guess" && level === 1;
    const made = document.createElement("li");
    made.append(button(kind === "guess" ? `guess, level ${level}` : kind, kind === "guess" ? `${first ? "guess " : ""}${level}` : kind, () => {
      player.pause();
      set(place);
    }, ""));
    return made;
  }

  function redraw() {
    if (!step || !(open || posed) || drawn !== frame) return;
    drawing.show(step, posed ?? phases[at]);
  }

  // Shows a phase on the tree alone, without bar, mask and cache; null: the whole tree again.
  function pose(phase) {
    if (!phase && !posed) return undefined;
    if (open) close();
    posed = phase;
    chart.classList.toggle("ph-unborn", posed !== null); // no node is chosen
    if (!posed) return drawing.clear();
    step = readStep(frame, run);
    return redraw();
  }

  function again() {
    drawing.forget();
    redraw();
  }

  function columnState(place, { kind, level }) {
    if (step.depth[step.nodes[place]] > level) return "absent";
    if (UNJUDGED.includes(kind)) return "waiting";
    if (kind === "check") return "read";
    const kept = step.kept.includes(step.nodes[place]);
    return kept ? "kept" : kind === "keep" ? "dropped" : "read";
  }

  function cacheNote({ kind }) {
    const [columns, kept] = [step.nodes.length, step.kept.length];
    if (kind === "check" || kind === "accept") return `${frame.cached} columns were there; the pass adds ${columns}, one for each node.`;
    if (kind === "keep") return `${kept} of ${columns} new columns move together behind the others: ${frame.cached + kept} for the next step.`;
    return `${frame.cached} columns are there; new ones come with the target's pass.`;
  }

  function light(node) {
    looked = node;
    if (!open || !step || node >= step.verdict.length) return;
    const phase = phases[at];
    const hidden = drawing.hides(step, phase, node);
    mask.show(!hidden ? asked(node, phase) : phase.kind === "root" ? 0 : phase.forks[0] ?? step.kept.at(-1));
    chart.classList.toggle("ph-unborn", hidden); // its halo waits for it
  }

  // The row that tells most of a node: of the root, its likeliest guess, beside which others may be.
  function asked(node, { kind }) {
    if (node || kind === "root") return node;
    return step.families[0].find((guess) => step.nodes.includes(guess)) ?? 0;
  }

  function lookAt(node) {
    if (!step) return;
    if (node !== undefined && drawing.hides(step, phases[at], node)) return;
    view.look(node);
    if (node !== undefined) mask.show(node);
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, .files, input:not([type=range])")) return;
    const by = { ".": 1, ",": -1 }[event.key] ?? (event.shiftKey ? { ArrowRight: 1, ArrowLeft: -1, ">": 1, "<": -1 }[event.key] : undefined);
    if (by === undefined && !(event.key === "Escape" && open)) return;
    event.preventDefault();
    event.stopPropagation();
    if (by) return go(by);
    close();
    toggle.focus();
  }

  return { begin, step: show, holds, enter, pose, now: () => (open && step ? phases[at] : null) };
}

function button(label, text, act, className) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text, className });
  if (label !== text) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function styled(tag, className) {
  return Object.assign(document.createElement(tag), { className });
}
