// Files of the run on show, and the address of every stop.

const PLACES = ["lesson", "example", "turn", "beat", "step", "phase", "question"];

function createSaving(root, host, stage) {
  const { state } = stage;
  const find = (name) => root.querySelector(`[data-save="${name}"]`);
  const name = () => `specllava-${state.race.race ?? "run"}`;
  const savers = {
    page: () =>
      host.page().then(([before, after]) => download(`${name()}.html`, "text/html", [before, frames(), after])),
    json: () => download(`${name()}.json`, "application/json", [state.race.end.file]),
    csv: () => download(`${name()}.csv`, "text/csv", [state.race.end.csv]),
    link: () =>
      navigator.clipboard.writeText(location.href).then(
        () => said("The link is copied."),
        () => said(location.href),
      ),
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

  const frames = () => JSON.stringify(host.frames()).replaceAll("<", "\\u003c");

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
    history[current === null || current === where || !place ? "replaceState" : "pushState"](null, "", address);
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
    return host.first
      ? host.first(query)
      : stage.show(tour, null, { mode: "tour", step: 0, beat: clamp((whole(query.get("beat")) || 1) - 1, 0, 5) });
  }

  window.addEventListener("popstate", follow);
  return follow;
}

const whole = (text) => (/^[0-9]{1,6}$/.test(text ?? "") ? Number(text) : 0);
