// The stage: what is shown at each stop, how one goes from stop to stop, and the clock that plays.

const PHASES = ["guess", "check", "accept", "keep"];
const LEVEL = 120; // milliseconds in which a level of guesses appears
const WIPE = 600; // of the block of a pass
const SLIDE = 450; // of the accepted branch into the trunk
const BEAT = 1800; // of a beat, and more for each letter to be read
const LETTER = 38;
const PAUSE = 200; // at a stop, before its table is made

// host: { catalog, open(name, turn) -> frames, page() -> halves of a saved page, measure() or null, addressed, plotly }
function createStage(root, host) {
  const find = (selector) => root.querySelector(selector);
  const [plot, under, over] = [".plot", ".under", ".over"].map(find);
  const field = { root: find(".field"), plot, under, over, plotly: null, at: null };
  const parts = {
    text: createText(root),
    time: createTimeline(root),
    light: createSpotlight(root, { toggle: lightAll, measure: host.measure }),
  };
  const races = new Map(); // those that were opened, by name and turn
  const stop = { mode: "run", beat: 0, lesson: 0, stop: 0, answered: false, step: 0, phase: 2 };
  const state = { race: null, ...stop, lit: null, one: null, playing: false, waits: false, before: null, frame: 0 };
  const whole = root.closest(".contain > *") ?? document.documentElement; // what presenting hides parts of
  let asked = 0; // the latest stop that was asked for: those before it come too late
  let gone = null; // the run that another race took the stage from
  let drawn = null; // the scene on show

  // --- scenes: everything that a stop shows -------------------------------------------------------

  const lessons = () => host.catalog.lessons;
  const lessonStop = () => lessons()[state.lesson].stops[state.stop];

  function scene() {
    const { race, mode } = state;
    if (!race.steps.length) return blankScene(race);
    if (mode === "tour") return sceneOf(race.end.beats[state.beat]);
    if (mode === "lesson")
      return sceneOf({ step: lessonStop().step, ...lessonStop()[state.answered ? "answer" : "question"] });
    const { step, phase } = state;
    const last = step === race.steps.length - 1 && phase === 3;
    const shown = sceneOf({ step, ...race.steps[step].phases[phase] });
    if (!last || !race.end) return shown;
    const key = race.raced ? ["large", "accepted", "refused", "never", "alone"] : ["large"];
    return { ...shown, ...race.end.headline, view: { name: "done" }, key, done: race.end.ending === "finished" };
  }

  function blankScene(race) {
    const words = race.end?.headline ?? {
      say: [["", race.waits ?? "Both models read the picture and the question …"]],
      more: [],
      short: [["", race.waits ?? "Reading the picture …"]],
    };
    const nothing = { view: null, key: [], fresh: Infinity, alone: null, passes: null, step: null, phase: null };
    return { ...words, ...nothing, clock: 0, upto: race.words.length, done: true };
  }

  function sceneOf(stop) {
    const { race } = state;
    const step = race.steps[stop.step];
    const after = stop.phase === "accept" || stop.phase === "keep";
    const clock = { alone: 0, guess: step.drafted, check: step.checked }[stop.phase] ?? step.end;
    const alone = race.raced && stop.key.includes("alone") ? aloneCount(race, clock) : null;
    const { passes = null, spot = null, seen = null } = stop.view;
    const [upto, fresh] = after ? [step.first + step.words.length, step.first] : [step.first, Infinity];
    const plain = state.mode === "tour" && alone === null; // the verdict says who wrote what
    return { ...stop, index: stop.step, step, clock, alone, passes, upto, fresh, plain, spot, seen };
  }

  // --- drawing ------------------------------------------------------------------------------------------

  function render({ moved = false } = {}) {
    const next = scene();
    const before = moved ? drawn : null;
    drawn = next;
    // Sizes and colours are read, and the figure is drawn, before anything is written: each later look, Plotly's among
    // them, would lay out the page anew. What depends on the new layout comes with the next frame.
    Object.assign(field, { width: field.root.clientWidth, height: field.root.clientHeight, colours: palette(root) });
    const rail = find(".slide svg").clientWidth;
    const drawOn = field.plotly && field.width ? drawField(next, before) : null; // not in a hidden tab
    root.dataset.mode = state.mode;
    root.classList.toggle("asks", state.mode === "lesson");
    const announced = state.playing || state.waits || (state.race.live && state.phase === 3);
    find(".say").setAttribute("aria-live", announced ? "off" : "polite");
    say(next);
    find(".line").textContent = "";
    parts.text.show(next.upto, next);
    const race = state.mode !== "tour" || next.alone !== null; // the tour shows one lane, then the other, then both
    parts.time.show(next.clock, { passes: next.passes, timed: next.done === true, race });
    find(".time").classList.toggle("idle", !state.race.steps.length);
    spot(next);
    transport(next, rail);
    cancelAnimationFrame(state.fitting);
    state.fitting = requestAnimationFrame(() => {
      fitSay(next.big);
      parts.text.toEnd();
      drawOn?.();
    });
    clearTimeout(state.listed);
    state.listed = setTimeout(table, PAUSE, next);
    host.moved?.(state);
  }

  function say({ say: long, short, more, big, link }) {
    const [title, below] = [find(".say h2"), find(".say p")];
    title.replaceChildren(...segments(narrow() ? short : long));
    title.className = big ? "big" : "";
    below.replaceChildren(...segments(more));
    if (link && host.leads)
      below.append(" ", html("button", { type: "button", class: "lead", click: () => host.leads(link) }, "See"));
    below.hidden = !more.length;
    below.className = "";
  }

  // Makes a sentence smaller that does not fit, or leaves out what is below it.
  function fitSay(big) {
    const [title, below] = [find(".say h2"), find(".say p")];
    const overflows = () => title.parentElement.scrollHeight > title.parentElement.clientHeight + 1;
    if (big && title.scrollWidth > title.clientWidth + 1) title.classList.add("less");
    if (!overflows()) return;
    if (big) below.className = "tight";
    else title.className = "small";
    if (overflows() && !narrow()) below.hidden = true;
  }

  // Returns what is drawn once words are where they belong, if anything.
  function drawField(next, before) {
    cancelAnimationFrame(state.frame);
    for (const word of root.querySelectorAll(".flying")) word.remove();
    drawThreads(root, field, null);
    if (!next.view) return emptyField(field);
    const { view, step } = next;
    if (view.name === "chain") return drawChain(field, view);
    if (view.name === "mask") return drawMask(field, step.tree, step.cached);
    const undecided = before?.step === step && !["done", "mask", "chain"].includes(before.view.name);
    return undecided && view.name === "done" && !calm() ? slide(next) : settle(next, before);
  }

  function settle(next, before) {
    const { view, step } = next;
    drawTree(field, step.tree, view);
    if (view.cache && !narrow()) drawCache(field, step.tree, step.cached);
    if (view.coin !== undefined) drawCoin(field, step.draws[view.coin]);
    else if (next.phase === "accept" && step.draws.length && state.mode === "run" && !narrow())
      drawCoin(field, step.draws.at(-1));
    if (before && !calm()) {
      if (view.name === "open" && before.step !== step) grow(step);
      if (view.name === "pass" || view.name === "words") wipe(field.under.querySelector(".slab"));
    }
    return view.threads ? () => drawThreads(root, field, step.tree, parts.text, step.first) : null;
  }

  // Guesses appear level by level.
  function grow(step) {
    const levels = Math.max(1, ...depthsOf(step.tree));
    const hidden = narrow() ? "inset(0 0 100% 0)" : "inset(-60px 100% -60px 0)";
    field.root.animate([{ clipPath: hidden }, { clipPath: "inset(-60px -60px -60px -60px)" }], {
      duration: Math.min(LEVEL * levels, 900),
      easing: "linear",
    });
  }

  function wipe(slab) {
    slab?.animate([{ clipPath: narrow() ? "inset(0 0 100% 0)" : "inset(0 100% 0 0)" }, { clipPath: "inset(0)" }], {
      duration: WIPE,
      easing: "ease-out",
    });
  }

  // The accepted branch slides to the trunk, while its words fly into the answer.
  function slide(next) {
    const began = performance.now();
    const { tree, first } = next.step;
    const at = placeNodes(tree, next.view, field.width, field.height, 1);
    const tick = (now) => {
      const share = clamp((now - began) / SLIDE, 0, 1);
      if (share === 1) return settle(next, null)?.();
      drawTree(field, tree, next.view, 1 - (1 - share) ** 3);
      state.frame = requestAnimationFrame(tick);
    };
    tick(began);
    return () => flyWords(root, { ...field, at }, tree, parts.text, first);
  }

  function spot(next) {
    const places = state.lit ?? next.spot;
    parts.light.show(state.one === null ? places : [state.one]);
    const seen = parts.light.isOn() ? (state.lit ?? next.seen ?? places) : [];
    parts.text.markSeen(seen);
    const marked = seen.length && (state.lit ?? next.seen);
    drawKey(find(".key"), marked ? [...next.key.slice(0, 2), "seen"] : next.key, host.catalog.key);
  }

  // While words are marked, one of them can be pointed at: the light shows what that one needed.
  function pointWord({ target, type }) {
    const token = target.closest?.(".token.seen");
    const one = token && type !== "pointerleave" ? Number(token.dataset.at) : null;
    if (!drawn || one === state.one) return;
    state.one = one;
    spot(drawn);
  }

  function lightAll(on) {
    if (on && state.mode === "run" && state.phase < 2) jump(state.race.steps.length - 1, 3);
    const words = state.race.grounding.words.map(({ at }) => at);
    state.lit = on ? words.filter((at) => at < drawn.upto) : [];
    spot(drawn);
    if (on) speak(state.race.grounding.say);
  }

  // The same as a table, for the ear.
  function table({ step, view }) {
    const body = find(".nodes tbody");
    const tree = view && step?.tree;
    if (!tree) return body.replaceChildren();
    const depths = depthsOf(tree);
    const columns = [depths, tree.text, tree.small, tree.nats];
    if (!["trunk", "open", "pass"].includes(view.name)) columns.push(tree.wish, tree.large);
    if (view.name === "done") columns.push(tree.verdict);
    const row = (node) => columns.map((column) => html("td", {}, String(column[node] ?? "")));
    const nodes = [...tree.parent.keys()].filter((node) => tree.kind[node] !== "n" || view.name === "done");
    body.replaceChildren(...nodes.map((node) => html("tr", {}, ...row(node))));
  }

  function speak(text) {
    find(".spoken").textContent = text;
  }

  // --- transport ------------------------------------------------------------------------------------------

  function transport(next, rail) {
    const { mode, race } = state;
    const [back, play, on, skip] = ["back", "play", "on", "skip"].map((act) => find(`[data-act="${act}"]`));
    const asks = mode === "lesson";
    const count = { tour: race.end?.beats?.length ?? 0, lesson: lessons().length, run: race.steps.length }[mode];
    const at = { tour: state.beat, lesson: state.lesson, run: state.step }[mode];
    back.disabled = at === 0 && !(asks && (state.answered || state.stop)) && !(mode === "run" && race.end?.beats);
    play.hidden = asks;
    play.querySelector("span").textContent = state.playing ? "Pause" : "Play";
    play.setAttribute("aria-label", state.playing ? "Pause" : "Play");
    play.classList.toggle("plays", state.playing);
    play.disabled = !race.steps.length;
    on.classList.toggle("first", mode !== "run");
    on.querySelector("span").textContent = mode === "run" ? "" : onWords();
    on.setAttribute("aria-label", mode === "run" ? "Step on" : onWords());
    on.disabled = mode === "run" && at >= count - 1 && state.phase === 3;
    back.setAttribute("aria-label", mode === "run" ? "Step back" : "Back");
    skip.hidden = mode !== "tour" || state.beat === count - 1;
    find(".phase").hidden = asks || !race.steps.length;
    for (const button of root.querySelectorAll(".phase button")) {
      const current = button.dataset.phase === next.phase;
      button.setAttribute("aria-current", current ? "step" : "false");
    }
    find(".slide").hidden = asks || count < 2;
    find(".hint").hidden = !asks;
    find(".at").textContent = atWords(at, count);
    const input = find(".slide input");
    Object.assign(input, { max: Math.max(0, count - 1), value: at });
    input.setAttribute("aria-valuetext", find(".at").textContent);
    if (!find(".slide").hidden)
      drawTicks(find(".slide svg"), rail, count, at, mode === "run" ? race.steps.map(({ brought }) => brought) : null);
  }

  function onWords() {
    if (state.mode === "tour") return state.beat < state.race.end.beats.length - 1 ? "Next" : "Try it";
    if (!state.answered) return "Show the answer";
    if (state.stop < lessons()[state.lesson].stops.length - 1) return "Next question";
    return state.lesson < lessons().length - 1 ? "Next lesson" : "Try it";
  }

  function atWords(at, count) {
    if (!count) return "";
    if (state.mode === "lesson") return `lesson ${at + 1} of ${count}: ${lessons()[at].title}`;
    if (state.mode === "tour") return `${at + 1} of ${count}`;
    return narrow() ? `${at + 1}/${count}` : `step ${at + 1} of ${count}`;
  }

  // --- going from stop to stop -------------------------------------------------------------------------

  function put(change) {
    Object.assign(state, { lit: null, before: null }, change);
    render({ moved: true });
  }

  function jump(step, phase) {
    pause();
    const last = state.race.steps.length - 1;
    if (last < 0) return;
    Object.assign(state, { mode: "run", before: null, step: clamp(step, 0, last), phase: clamp(phase, 0, 3) });
    render({ moved: true });
  }

  const rest = (step) => (step === state.race.steps.length - 1 ? 3 : 2); // the phase in which a step is shown at rest

  function next() {
    pause();
    if (state.mode === "tour")
      return state.beat < state.race.end.beats.length - 1 ? put({ beat: state.beat + 1 }) : tryIt();
    if (state.mode === "lesson") return nextInLesson();
    if (state.step < state.race.steps.length - 1) put({ step: state.step + 1, phase: rest(state.step + 1) });
    else if (state.phase < 3) put({ phase: 3 });
  }

  function previous() {
    pause();
    if (state.mode === "tour") return put({ beat: Math.max(0, state.beat - 1) });
    if (state.mode === "lesson") return previousInLesson();
    if (state.before) return put(state.before);
    if (state.step > 0) put({ step: state.step - 1, phase: rest(state.step - 1) });
    else if (state.race.end?.beats) put({ mode: "tour", beat: state.race.end.beats.length - 1 });
  }

  function nextInLesson() {
    if (!state.answered) return put({ answered: true });
    if (state.stop < lessons()[state.lesson].stops.length - 1)
      return openLesson(state.lesson, { stop: state.stop + 1 });
    return state.lesson < lessons().length - 1 ? openLesson(state.lesson + 1) : tryIt();
  }

  function previousInLesson() {
    if (state.answered) return put({ answered: false });
    if (state.stop) return openLesson(state.lesson, { stop: state.stop - 1, answered: true });
    if (!state.lesson) return null;
    return openLesson(state.lesson - 1, { stop: lessons()[state.lesson - 1].stops.length - 1, answered: true });
  }

  // Presented, the last screen stays; else one step back leads to it again.
  function tryIt() {
    if (root.classList.contains("present")) return;
    const { mode, beat, step } = state;
    put({ mode: "run", step: state.race.steps.length - 1, phase: 3, before: { mode, beat, step } });
  }

  async function openLesson(lesson, { stop = 0, answered = false } = {}) {
    pause();
    const { race } = lessons()[lesson].stops[stop];
    await show(race, null, { mode: "lesson", lesson, stop, answered });
  }

  async function openTour() {
    pause();
    await show(host.catalog.tour, null, { mode: "tour", beat: 0, step: 0 });
  }

  // Opens a recorded race and goes to a stop of it.
  async function show(name, turn, stop) {
    const request = ++asked;
    const key = `${name} ${turn ?? ""}`;
    try {
      const known = races.get(key);
      const opened = known ? host.chosen?.(name, turn) : await host.open(name, turn);
      if (request !== asked) return;
      if (!known) races.set(key, raceFrom(opened));
      begin(races.get(key), stop);
    } catch (failure) {
      if (request === asked) notice(`This run could not be loaded (${failure.message}). Please try again.`);
    }
  }

  function raceFrom(list) {
    const race = newRace(JSON.parse(list[0]));
    readFrames(race, list);
    return race;
  }

  function begin(race, stop) {
    pause();
    state.waits = race.live && !race.end;
    const other = race !== state.race;
    if (other && state.race?.live) gone = state.race.id;
    state.race = race;
    if (other) {
      parts.text.begin(race);
      parts.time.begin(race);
      parts.light.begin(race);
      find(".asked").textContent = race.question;
      drawn = null;
    }
    const { step = null, ...more } = stop;
    const last = Math.max(0, race.steps.length - 1);
    const phase = step === null || step >= last ? 3 : 2;
    Object.assign(state, { lit: null, before: null, mode: "run", step: clamp(step ?? last, 0, last), phase }, more);
    if (state.mode === "tour" && !race.end?.beats) state.mode = "run";
    render({ moved: !other });
  }

  // New frames of the race on show, or another race. `stop`: where to begin.
  function feed(list, stop = {}) {
    if (!list?.length) return;
    const run = JSON.parse(list[0]);
    if (run.id === gone) return; // its last frames may come late
    if (run.id === state.race?.id) return extend(list);
    asked += 1;
    const race = raceFrom(list);
    if (race.race) races.set(`${race.race} ${race.turn ?? ""}`, race);
    begin(race, race.live ? { step: 0, phase: 0 } : stop);
    if (race.live && race.steps.length) follow();
  }

  function extend(list) {
    const { race } = state;
    const ended = race.end !== null;
    const grounded = race.grounding !== null;
    if (!readFrames(race, list)) return;
    if (race.grounding && !grounded && ended) return lightAll(race.grounding.words.length > 0);
    if (state.waits) return follow();
    render();
    if (race.end && !ended && !state.playing) speak(race.end.announce);
  }

  // A race that runs is played as it comes; with reduced motion it is shown as far as it is.
  function follow() {
    const { race } = state;
    if (calm() || !race.steps.length) {
      const [step, phase] = [Math.max(0, race.steps.length - 1), race.end ? 3 : 2];
      Object.assign(state, { step, phase, waits: !race.end });
      render();
      if (race.end) speak(race.end.announce);
    } else play();
  }

  // --- the clock ----------------------------------------------------------------------------------------------

  let timer = 0;

  function toggle() {
    const { mode, race } = state;
    if (state.playing || !race.steps.length) return pause();
    if (mode === "run" && race.end && state.step >= race.steps.length - 1 && state.phase >= 2)
      Object.assign(state, { step: 0, phase: 0 });
    if (mode === "tour" && state.beat === race.end.beats.length - 1) state.beat = 0;
    play();
  }

  function play() {
    Object.assign(state, { playing: true, waits: false });
    root.classList.add("playing");
    render({ moved: true });
    arm();
  }

  function pause() {
    cancelAnimationFrame(timer);
    if (state.race?.steps.length) state.waits = false;
    if (!state.playing) return;
    state.playing = false;
    root.classList.remove("playing");
    if (drawn) transport(drawn);
  }

  // Until the next stop; meanwhile both bars move.
  function arm() {
    const began = performance.now();
    const span = spanOf();
    const { step, phase, mode } = state;
    const tick = (now) => {
      const share = clamp((now - began) / span, 0, 1);
      if (mode === "run") sweep(step, phase, share);
      if (share < 1) timer = requestAnimationFrame(tick);
      else if (state.playing) advance();
    };
    timer = requestAnimationFrame(tick);
  }

  function spanOf() {
    const { race, mode } = state;
    if (mode === "tour") return BEAT + LETTER * drawn.say.reduce((total, [, text]) => total + text.length, 0);
    const step = race.live
      ? clamp(7000 / Math.max(10, race.steps.length), 250, 700)
      : clamp(16000 / race.steps.length, 300, 1600);
    return step * [0.36, 0.28, 0.36, 0.1][state.phase];
  }

  function sweep(number, phase, share) {
    const { race } = state;
    const step = race.steps[number];
    const times = [step.start, step.drafted, step.checked, step.end, step.end];
    const [from, to] = times.slice(phase);
    const clock = from + (to - from) * share;
    parts.time.show(clock);
    const upto = step.first + (phase > 1 ? step.words.length : 0);
    const alone = race.raced ? aloneCount(race, clock) : null;
    parts.text.show(upto, { fresh: phase > 1 ? step.first : Infinity, alone });
    parts.text.toEnd();
  }

  function advance() {
    const { race, mode } = state;
    if (mode === "tour") {
      if (state.beat === race.end.beats.length - 1) return pause();
      state.beat += 1;
    } else if (state.phase < 2) state.phase += 1;
    else if (state.step < race.steps.length - 1) Object.assign(state, { step: state.step + 1, phase: 0 });
    else if (!race.end)
      return void (state.waits = true); // goes on with the next frames
    else {
      state.phase = 3;
      pause();
      render();
      return speak(race.end.announce);
    }
    render({ moved: true });
    arm();
  }

  // --- pointer and keys ------------------------------------------------------------------------------------------

  function notice(text) {
    find(".line").textContent = text;
  }

  function pointAt(event) {
    const { at } = field;
    const step = drawn?.step;
    if (!at || !step) return;
    const box = field.root.getBoundingClientRect();
    const scale = box.width / field.root.clientWidth || 1;
    const [x, y] = [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
    const near = at.x
      .map((_, node) => [Math.hypot(at.x[node] - x, at.y[node] - y - 8), node])
      .filter(([, node]) => at.shown[node]);
    const [distance, node] = near.reduce((best, one) => (one[0] < best[0] ? one : best), [30, null]);
    const line = distance < 30 && node !== null ? step.lines[node] : "";
    find(".line").textContent = drawn.view.name === "done" ? line : line.replace(/\.[^.]*\.$/, ".");
  }

  function press(event) {
    const typed = event.target.closest("input:not([type=range]), textarea, select, [contenteditable]");
    if (typed || event.ctrlKey || event.metaKey || event.altKey || !root.offsetParent) return;
    const presents = root.classList.contains("present");
    const onButton = event.target.closest("button, summary, a") && event.key === " ";
    const digit = presents && /^[0-9]$/.test(event.key) ? (Number(event.key) + 9) % 10 : null;
    const keys = {
      ArrowRight: next,
      ArrowLeft: previous,
      PageDown: next,
      PageUp: previous,
      " ": presents || state.before || state.mode === "lesson" ? next : toggle,
      Home: () => first(),
      End: () => state.mode === "run" && jump(state.race.steps.length - 1, 3),
      ...(presents && { Escape: () => present(false), b: () => root.classList.add("blank") }),
      ...(lessons()[digit] && { [event.key]: () => openLesson(digit) }),
    };
    if (!keys[event.key] || onButton || !state.race) return;
    event.preventDefault();
    if (!root.classList.contains("blank")) keys[event.key]();
    else root.classList.remove("blank"); // whatever the key
  }

  function first() {
    if (state.mode === "tour") put({ beat: 0 });
    else if (state.mode === "run") jump(0, 0);
  }

  function present(on) {
    root.classList.toggle("present", on);
    root.classList.remove("blank");
    whole.classList.toggle("presents", on);
    if (on) document.documentElement.requestFullscreen?.().catch(() => {});
    else if (document.fullscreenElement) document.exitFullscreen();
    render();
    if (on) root.focus();
  }

  function listen() {
    const act = {
      back: previous,
      on: next,
      play: toggle,
      skip: tryIt,
      tour: openTour,
      present: () => present(!root.classList.contains("present")),
    };
    for (const button of root.querySelectorAll("[data-act]"))
      button.addEventListener("click", () => (act[button.dataset.act](), state.before && host.tries?.()));
    for (const button of root.querySelectorAll(".phase button")) {
      button.addEventListener("click", () => jump(drawn.index ?? state.step, PHASES.indexOf(button.dataset.phase)));
    }
    find(".slide input").addEventListener("input", ({ target }) => {
      const at = Number(target.value);
      if (state.mode === "tour") put({ beat: at });
      else jump(at, rest(at));
    });
    field.root.addEventListener("pointermove", pointAt);
    field.root.addEventListener("pointerdown", pointAt);
    field.root.addEventListener("pointerleave", () => (find(".line").textContent = ""));
    const answer = find(".answer");
    for (const type of ["pointerover", "pointerdown", "pointerleave"]) answer.addEventListener(type, pointWord);
    document.addEventListener("keydown", press);
    document.addEventListener(
      "fullscreenchange",
      () => !document.fullscreenElement && root.classList.contains("present") && present(false),
    );
    const menu = find(".lessons ol");
    menu.append(html("li", { class: "on-phone" }, html("button", { type: "button", click: openTour }, "How it works")));
    const offer = (title, click) => menu.append(html("li", {}, html("button", { type: "button", click }, title)));
    lessons().forEach(({ title }, lesson) => offer(title, () => openLesson(lesson)));
    if (!host.addressed) offer("This run", () => show("", null, {}));
    find(".lessons").hidden = !lessons().length;
    for (const details of root.querySelectorAll("details.menu")) {
      details.addEventListener("click", ({ target }) => target.closest("button") && (details.open = false));
      document.addEventListener("click", ({ target }) => !details.contains(target) && (details.open = false));
    }
    // Presented, the stage is as large as 800 by 600 of its pixels fill the screen.
    const fit = () => root.style.setProperty("--zoom", Math.min(innerWidth / 800, innerHeight / 600));
    addEventListener("resize", fit);
    fit();
    const redraw = () => state.race && render();
    new ResizeObserver(redraw).observe(field.root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  async function load() {
    field.plotly = await host.plotly();
    root.classList.add("alive");
    if (state.race) render();
  }

  listen();
  load().catch(({ message }) => notice(message));
  return { state, feed, show, openLesson };
}

function drawKey(element, names, words) {
  if (element.dataset.names === names.join()) return;
  element.dataset.names = names.join();
  element.replaceChildren(...names.map((name) => html("span", { class: `k-${name}` }, sign(name), words[name])));
}

function sign(name) {
  const icon = (...shapes) => svg("svg", { viewBox: "0 0 14 14", "aria-hidden": true }, ...shapes);
  const round = (kind) => svg("circle", { cx: 7, cy: 7, r: 5.5, class: kind });
  const level = (at) => svg("circle", { cx: 7 + at * 14.5, cy: 7, r: 5, class: `s-guess d${at}` });
  const square = (name, rx) => icon(svg("rect", { x: 1, y: 1, width: 12, height: 12, rx, class: name }));
  const diamond = svg("path", { d: "M7 -1L15 7L7 15L-1 7Z", class: "s-large" });
  const made = {
    large: () => icon(diamond),
    guess: () => icon(round("s-guess")),
    accepted: () => icon(round("s-small")),
    never: () => icon(round("s-never")),
    refused: () => icon(svg("path", { d: "M2 2H12V12H2ZM5 5L9 9M9 5L5 9", class: "s-no" })),
    doubt: () => svg("svg", { viewBox: "0 0 58 14", class: "wide", "aria-hidden": true }, ...[0, 1, 2, 3].map(level)),
    alone: () => html("i", { class: "cursor-alone" }),
    block: () => square("slab", 3),
    same: () => html("b", { class: "w-large" }, "= ≠"),
    seen: () => html("b", { class: "k-word" }, "word"),
    sees: () => square("sees", 0),
    kept: () => square("kept", 3),
    dropped: () => square("dropped", 3),
  };
  return made[name]();
}
