// The player: one clock that moves race, timeline and tree together. It follows the recorded clocks of the two
// lanes, runs in the browser alone, and takes new frames as they are appended to the component's value.

// Parts of the page that follow the player. Each is a module with `create(root, context)`, which returns what it wants
// to hear of: `begin(run)`, `said()` as words come or go, `end(frame)`, `step(frame, index, count, playing)` as another step
// is shown (index from 1), `phase(kind, frame)` as another phase of it is (null: the step as a whole), `view(name)` as
// another view is chosen. While a part's `holds(now)`, the clock waits.
const PARTS = ["views", "grounding", "dialogue", "phases", "coin", "opening", "lessons", "present", "address"];

// `plotly` is the address of the drawing library; `page` gives a blank page to save a run in; `teach` opens a lesson by its
// number, where no menu of the page does.
export function mount({ element, props, watch, server, plotly, page, edit, teach, modules }) {
  const { race, step, charts, files } = modules;
  const root = element.querySelector(".player");
  const ready = once(() => window.Plotly ?? loadPlotly(plotly)); // a saved page brings it along
  const lanes = race.createRace(root, modules.lanes.createLanes(root, race.LANES));
  const views = [lanes, step.createStep(root, ready, modules.tree_fit.fit, lanes.hint), charts.createCharts(root, ready)];
  const player = new Player(root, ...views, race.duration, files.unpacked);
  let opened = null; // a turn that was picked, instead of the newest
  const frames = () => opened ?? props.value ?? [];
  const context = { player, step: views[1], plotly: ready, modules, frames, server, edit, teach, open, live: Boolean(server), part };
  player.parts = PARTS.map((name) => modules[name].create(root, context));
  function part(name) {
    return player.parts[PARTS.indexOf(name)];
  }
  const { whole } = part("dialogue");
  const menu = files.createFiles(root, { frames, whole, address: part("address"), page, tables: modules.tables });
  function open(list) {
    opened = list;
    player.feed(frames());
    menu.offer();
  }
  watch("value", () => open(null));
  player.feed(frames());
}

// What fails is made anew at the next call.
function once(make) {
  let made = null;
  return () =>
    (made ??= Promise.resolve(make()).catch((failure) => {
      made = null;
      throw failure;
    }));
}

export function loadPlotly(address) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = address;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      script.remove();
      reject(new Error("the drawing library did not load"));
    };
    document.head.append(script);
  });
}

const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

class Player {
  constructor(root, race, step, charts, duration, unpacked) {
    Object.assign(this, { root, race, step, charts, duration, unpacked, parts: [], told: null, read: Promise.resolve(), run: null, seen: 0, time: 0, playing: false, end: null, firstPass: false,
      opened: false, paced: false });
    this.scrub = this.find(".scrub");
    this.speed = this.find(".speed");
    this.actions = {
      first: () => this.jump(0),
      previous: () => this.jump(this.index() - 1),
      next: () => this.jump(this.index() + 1),
      last: () => this.seek(this.race.total()),
      play: () => this.toggle(),
    };
    this.listen();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  // --- frames -------------------------------------------------------------------------------

  // Lists are read one after the other, because pictures take a moment to unpack. A list that fails stops none after it.
  feed(list) {
    this.read = this.read.then(() => this.take(list)).catch((failure) => console.error("frames were not shown:", failure));
  }

  async take(list) {
    if (!list.length) return;
    const first = JSON.parse(list[0]);
    const another = first.id !== this.run?.id;
    const seen = another ? 1 : this.seen;
    const frames = await Promise.all(list.slice(seen).map((text) => this.parsed(text)));
    if (another) this.begin(first); // only now, so that nothing of two runs is ever on show together
    this.step.reserve(frames.filter(({ figure }) => figure));
    for (const frame of frames) {
      this.seen += 1; // before it is added, so that one that fails is not added twice
      this.add(frame);
    }
    this.race.place();
    if (this.end && !this.run.live && !this.opened) this.jump(this.end.show);
    else if (this.run.live && calm()) this.seek(this.race.total());
    else this.render();
    if (this.run.live && !this.opened && !calm()) this.play();
    this.opened = true;
  }

  async parsed(text) {
    const frame = JSON.parse(text);
    return frame.picture ? { ...frame, ...JSON.parse(await this.unpacked(frame.picture)) } : frame;
  }

  begin(run) {
    Object.assign(this, { run, seen: 1, time: 0, end: null, firstPass: run.live, opened: false, told: null });
    this.pause();
    this.race.reset(run);
    this.step.reset(run.live);
    this.charts.show([]);
    if (!this.paced) this.speed.value = String(run.speed);
    this.find(".origin").textContent = [run.source, run.setting].join(" · ");
    this.find(".this-run").textContent = `This run: ${run.settings}.`;
    this.find(".asked").textContent = run.prompt;
    this.tell("begin", run);
    this.root.style.setProperty("--threshold", `${(100 * run.threshold) / run.ceiling}%`);
    for (const mark of this.root.querySelectorAll(".by-entropy")) mark.hidden = run.threshold === null;
    this.find(".threshold").textContent = run.threshold?.toFixed(1) ?? "";
  }

  add(frame) {
    if (frame.kind === "end") {
      this.end = frame;
      this.race.end(frame);
      if (this.race.led().length < 2) this.step.end(frame.ending);
      this.charts.show(frame.charts);
      this.tell("end", frame);
    } else {
      this.race.add(frame);
    }
  }

  tell(event, ...what) {
    for (const part of this.parts) part?.[event]?.(...what);
  }

  // --- the clock ----------------------------------------------------------------------------

  index() {
    return Math.max(0, this.race.stepsAt(this.time) - 1); // of the step on show, from 0
  }

  jump(index) {
    const steps = this.race.led();
    const item = steps[Math.min(Math.max(index, 0) + 1, steps.length - 1)];
    if (item) this.seek(item.end);
  }

  seek(time) {
    this.pause();
    this.firstPass = false;
    this.time = time;
    this.render();
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.time >= this.race.total() - 1e-9) this.time = 0;
    this.play();
  }

  play() {
    this.playing = true;
    this.mark();
    let before = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      const passed = this.parts.some((part) => part?.holds?.(now)) ? 0 : now - before;
      before = now;
      if (passed && this.end && this.time >= this.race.total()) return this.seek(this.race.total());
      this.time = Math.min(this.time + (passed / 1000) * Number(this.speed.value), this.race.total());
      this.render();
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    this.mark();
  }

  mark() {
    const button = this.find(".play");
    button.classList.toggle("playing", this.playing);
    button.querySelector("span").textContent = this.playing ? "Pause" : "Play";
  }

  // --- what is shown ------------------------------------------------------------------------

  render() {
    const steps = this.race.led();
    const total = this.race.total();
    if (this.race.show(this.time)) this.tell("said");
    const reached = steps[this.index() + 1];
    const shown = this.firstPass && !(reached?.end <= this.time + 1e-9) ? undefined : reached; // no step before its time
    if (shown) this.step.show(shown.frame, this.index() + 1, steps.length - 1, this.playing);
    if (shown && shown !== this.told) this.tell("step", shown.frame, this.index() + 1, steps.length - 1, this.playing);
    this.told = shown;
    this.find(".count").textContent = shown ? `step ${this.index() + 1} of ${steps.length - 1}` : "";
    this.scrub.value = total ? (1000 * this.time) / total : 0;
    this.scrub.style.setProperty("--done", `${total ? (100 * this.time) / total : 0}%`);
    this.scrub.setAttribute("aria-valuetext", shown ? `${this.duration(this.time)}, ${this.find(".count").textContent}` : "");
    this.headline(this.firstPass ? shown?.frame.totals : (this.end ?? steps.at(-1)?.frame)?.totals);
  }

  headline(totals) {
    for (const place of this.root.querySelectorAll("[data-total]")) {
      const text = totals?.[place.dataset.total] ?? (place.closest(".rate, small") ? "" : "–");
      if (place.textContent !== text) place.textContent = text;
    }
    for (const card of this.root.querySelectorAll("[data-state-of]")) card.dataset.state = totals?.[`${card.dataset.stateOf}_state`] ?? "open";
  }

  // --- what the visitor does ------------------------------------------------------------------

  listen() {
    this.root.addEventListener("click", (event) => {
      const action = event.target.closest("[data-do]")?.dataset.do;
      const item = event.target.closest("[data-item]")?.dataset.item;
      if (action) this.actions[action]();
      else if (item) this.seek(this.race.lane(event.target.closest("[data-lane]").dataset.lane)[item].end);
    });
    this.scrub.addEventListener("input", () => this.seek((this.scrub.value / 1000) * this.race.total()));
    this.speed.addEventListener("change", () => (this.paced = true)); // a speed once chosen outlives the run
    this.find(".stage").addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
    if (event.key === " " && event.target.closest("button, summary")) return;
    if (event.target.matches(".scroller, .table-scroll") && event.target.scrollWidth > event.target.clientWidth) return; // it scrolls itself
    const { first, previous, next, last, play } = this.actions;
    const keys = { " ": play, ArrowLeft: previous, ArrowRight: next, Home: first, End: last,
      ArrowUp: () => this.step.move(-1), ArrowDown: () => this.step.move(1) };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }
}
