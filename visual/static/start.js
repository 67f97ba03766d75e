// How the stage starts: in the live page, in the static edition, and in a page of its own that asks nobody.

function loadPlotly(address) {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  return new Promise((resolve, reject) => {
    const script = html("script", { src: address });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The drawing library did not load: please reload the page."));
    document.head.append(script);
  });
}

// The live page: frames come as the value of a component; a recorded race is asked for by an event.
function startPage({ element, props, watch, server, ask, needed }) {
  const root = element.querySelector(".stage");
  const { catalog } = props;
  const asked = new Map(); // by the id that their frames get: who waits for them
  let count = 0;
  const request = (race, turn, waits) => {
    const id = `asked-${Date.now()}-${(count += 1)}`;
    asked.set(id, waits);
    ask(race, turn, id);
  };
  const host = {
    catalog,
    addressed: true,
    plotly: () => loadPlotly(new URL(`gradio_api/file=${props.plotly}`, document.baseURI).href),
    open: (race, turn) => new Promise((resolve) => request(race, turn, resolve)),
    chosen: (race, turn) => request(race, turn, () => {}), // it is on show already
    page: () => server.saved_page(catalog.tour),
    measure: props.measures ? needed : null,
    tries: () => document.querySelector("#question textarea, #question input")?.focus(),
    leads: () => (openTab(1), setTimeout(() => document.querySelector("#pays")?.scrollIntoView(), 300)),
  };
  const stage = createStage(root, host);
  createSaving(root, host, stage);
  const follow = createAddress(host, stage);
  host.first = (stop) => stage.feed(props.value, stop);
  watch("value", () => {
    const run = props.value?.length ? JSON.parse(props.value[0]) : {};
    const waits = asked.get(run.id) ?? stage.feed;
    asked.delete(run.id);
    waits(props.value);
  });
  follow();
  host.first = null; // whoever comes back to the page's first address finds the tour
  keepTabs();
  watchServer(root.querySelector(".gone"));
}

// The tabs are entries of the history.
function openTab(number) {
  document.querySelectorAll('#tabs button[role="tab"]')[number]?.click();
}

function keepTabs() {
  const shown = () => (new URLSearchParams(location.search).get("tab") === "measure" ? 1 : 0);
  document.addEventListener("click", ({ target }) => {
    const tab = target.closest('#tabs button[role="tab"]');
    if (!tab) return;
    const query = new URLSearchParams(location.search);
    const measure = [...document.querySelectorAll('#tabs button[role="tab"]')].indexOf(tab) === 1;
    if (measure === (query.get("tab") === "measure")) return;
    if (measure) query.set("tab", "measure");
    else query.delete("tab");
    history.pushState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  });
  window.addEventListener("popstate", () => openTab(shown()));
  if (shown()) openTab(1);
}

const LOOK = 10_000; // milliseconds between two looks whether the server is there

// A lost server is said once, where it stays to be read.
function watchServer(place) {
  let served = null;
  const say = (text) => place.textContent !== text && (place.textContent = text);
  const look = async () => {
    const answer = await fetch(new URL("gradio_api/app_id", document.baseURI), { cache: "no-store" })
      .then((one) => (one.ok ? one.text() : null))
      .catch(() => null);
    served ??= answer;
    if (answer === null) say("The server is gone: nothing runs until it is back. What is shown stays.");
    else say(answer === served ? "" : "The server was started anew: please reload the page.");
    setTimeout(look, LOOK);
  };
  setTimeout(look, LOOK);
}

// The static edition: races are files beside the page.
async function startSite() {
  const root = document.querySelector(".stage");
  const site = JSON.parse(document.querySelector("#site").textContent);
  const address = (name) => new URL(name, document.baseURI).href;
  const read = async (name) => {
    const answer = await fetch(address(name));
    if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
    return answer;
  };
  const host = {
    catalog: site.catalog,
    addressed: true,
    measure: null,
    plotly: () => loadPlotly(address(site.plotly)),
    open: async (race, turn) => (await read(site.files[`${race} ${turn ?? ""}`.trim()])).json(),
    page: async () => {
      const text = async (name) => (await read(name)).text();
      const [page, plotly] = await Promise.all([site.blank, site.plotly].map(text));
      const [before, after] = page.split(mark("frames"));
      const { lessons, tour } = site.catalog;
      const names = [...new Set([tour, ...lessons.flatMap(({ stops }) => stops.map(({ race }) => race))])];
      const races = await Promise.all(names.map(async (name) => [name, await host.open(name)]));
      return [before, after.split(mark("plotly")).join(plotly), Object.fromEntries(races)];
    },
  };
  keepTheme(null);
  const stage = createStage(root, host);
  createSaving(root, host, stage);
  createAddress(host, stage)();
  startList(root, stage, site.catalog.examples);
}

const mark = (name) => `<!-- ${name} -->`; // of a part that a blank page lacks

// A page of its own: frames of its run, and of tour and lessons where it has them, are an element of it.
function startSaved() {
  const root = document.querySelector(".stage");
  const saved = JSON.parse(document.querySelector("#frames").textContent);
  const host = {
    catalog: saved.catalog,
    addressed: false,
    measure: null,
    page: null,
    plotly: async () => window.Plotly,
    open: async (race) => saved.races?.[race] ?? saved.frames,
  };
  const cell = window.frameElement?.matches("[data-specllava]") ? window.frameElement : null;
  if (cell) fitCell(cell, root);
  keepTheme(cell);
  const stage = createStage(root, host);
  createSaving(root, host, stage);
  stage.feed(saved.frames);
}

// As dark as the system, or as the text around a notebook's cell is light.
function keepTheme(cell) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = () => getComputedStyle(cell.parentElement).color.match(/[\d.]+/g).slice(0, 3);
  const lightText = () => Math.max(...colour()) > 127;
  const paint = () => document.documentElement.classList.toggle("dark", cell ? lightText() : dark.matches);
  dark.addEventListener("change", paint);
  cell?.addEventListener("pointerenter", paint);
  paint();
}

// A notebook's cell is as high as the stage.
function fitCell(cell, root) {
  document.documentElement.classList.add("in-cell");
  const fit = () => (cell.style.height = `${Math.ceil(root.getBoundingClientRect().bottom + scrollY) + 8}px`);
  new ResizeObserver(fit).observe(root);
}

// The recorded races as pictures to choose from.
function startList(root, stage, examples) {
  const list = root.querySelector(".thumbs");
  for (const { name, title, picture } of examples) {
    const named = { type: "button", class: "thumb", title, "aria-label": title };
    const button = html("button", { ...named, click: () => stage.show(name, null, {}) });
    if (picture) button.style.backgroundImage = `url("${encodeURI(picture)}")`;
    list.append(button);
  }
}

export { startPage, startSite, startSaved };

// --- files of the run on show, and the address of every stop --------------------------------------------

const PLACES = ["lesson", "example", "turn", "beat", "step", "phase", "question"];

function createSaving(root, host, stage) {
  const { state } = stage;
  const find = (name) => root.querySelector(`[data-save="${name}"]`);
  const name = () => `specllava-${state.race.race ?? "run"}`;
  const savers = {
    page: async () => {
      const [before, after, races] = await host.page();
      const data = { frames: state.race.list, catalog: { ...host.catalog, examples: [] }, races };
      await download(`${name()}.html`, "text/html", [before, JSON.stringify(data).replaceAll("<", "\\u003c"), after]);
    },
    json: () => download(`${name()}.json`, "application/json", [state.race.end.file]),
    csv: () => download(`${name()}.csv`, "text/csv", [state.race.end.csv]),
    link: async () => {
      const copied = navigator.clipboard?.writeText(location.href).then(() => "The link is copied."); // not over http
      said((await copied?.catch(() => null)) ?? location.href);
    },
  };
  for (const [one, save] of Object.entries(savers)) {
    find(one).addEventListener("click", () => save().catch(({ message }) => said(`This was not saved: ${message}`)));
  }
  root.querySelector(".save").addEventListener("toggle", () => {
    const { race } = state;
    find("page").hidden = !host.page;
    find("json").disabled = find("csv").disabled = find("page").disabled = !race?.end;
    find("link").hidden = !host.addressed || !race?.race;
  });

  function said(text) {
    root.querySelector(".line").textContent = text;
  }
}

async function download(name, type, parts) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// --- addresses ------------------------------------------------------------------------------------------

// The query of the stop on show.
function placeOf({ race, mode, beat, lesson, stop, answered, step, phase }, { tour, lessons }) {
  if (!race) return {};
  if (mode === "lesson") {
    const asked = lessons[lesson].stops.length > 1 ? { question: stop + 1 } : {};
    return { lesson: lesson + 1, ...asked, ...(answered ? { phase: "answer" } : {}) };
  }
  if (mode === "tour") return beat ? { beat: beat + 1 } : {};
  if (!race.race || !race.steps.length) return {};
  const last = step === race.steps.length - 1 && phase === 3;
  const turn = race.turn === undefined || race.turn === null ? {} : { turn: race.turn + 1 };
  const own = lessons.some(({ stops }) => stops.some((one) => one.race === race.race)) && race.race !== tour;
  return { [own ? "race" : "example"]: race.race, ...turn, ...(last ? {} : { step: step + 1, phase: PHASES[phase] }) };
}

// Keeps the address in step with the stage: another race or lesson is a new entry of the history, a step is not.
function createAddress(host, stage) {
  let current = null;
  let following = false;

  host.moved = (state) => {
    if (!host.addressed || following) return;
    const place = placeOf(state, host.catalog);
    const query = new URLSearchParams(location.search);
    for (const key of [...PLACES, "race"]) query.delete(key);
    for (const [key, value] of Object.entries(place)) query.set(key, value);
    const where = `${state.mode} ${place.lesson ?? ""} ${place.example ?? place.race ?? ""} ${place.turn ?? ""}`;
    const address = `${location.pathname}${query.size ? `?${query}` : ""}${location.hash}`;
    if (address === location.pathname + location.search + location.hash) return void (current = where);
    history[current === null || current === where ? "replaceState" : "pushState"](null, "", address);
    current = where;
  };

  async function follow() {
    const query = new URLSearchParams(location.search);
    following = true;
    try {
      await go(query);
    } finally {
      following = false;
      current = null;
      host.moved(stage.state);
    }
  }

  async function go(query) {
    const { lessons, older, examples, tour } = host.catalog;
    const number = whole(query.get("lesson"));
    if (number && lessons.length) {
      const known = number > lessons.length ? (older[number] ?? 1) : number;
      const stop = clamp(whole(query.get("question")) || 1, 1, lessons[known - 1].stops.length) - 1;
      return stage.openLesson(known - 1, { stop, answered: query.get("phase") === "answer" });
    }
    const name = query.get("example") ?? query.get("race");
    const found =
      examples.find((example) => example.name === name) ??
      lessons.flatMap(({ stops }) => stops).find(({ race }) => race === name);
    const step = whole(query.get("step"));
    const phase = PHASES.indexOf(query.get("phase"));
    const stop = { ...(step ? { step: step - 1 } : {}), ...(phase < 0 ? {} : { phase }) };
    if (found) return stage.show(name, whole(query.get("turn")) ? whole(query.get("turn")) - 1 : null, stop);
    const landing = { mode: "tour", step: 0, beat: clamp((whole(query.get("beat")) || 1) - 1, 0, 5) };
    return host.first ? host.first(landing) : stage.show(tour, null, landing);
  }

  window.addEventListener("popstate", follow);
  return follow;
}

const whole = (text) => (/^[0-9]{1,6}$/.test(text ?? "") ? Number(text) : 0);
