// Everything has an address: it names lesson or example, turn, step, phase and presentation, follows what is shown without
// an entry in the history, and opens with what it names. A live run is packed into the fragment: a race file as any other.

const LONGEST = 30_000; // characters of a packed run: longer links get cut off on their way
const MOST = 2 ** 21; // bytes of an unpacked one
const EACH = 300; // milliseconds between two changes: browsers refuse more than some hundred in half a minute
const TRIES = 200; // of 50 ms, until the page has its button for race files
const MARK = "#race=";
const NAME = "shared-run"; // of the file
const RACE_FILE = "input[type=file]:has(+ #open-race)";

export function create(root, { player, part, live, teach, modules }) {
  const { packed: pack, unpacked } = modules.files;
  const notice = root.querySelector(".link-notice");
  const query = new URLSearchParams(location.search);
  let wanted = { turn: whole(query.get("turn")), step: whole(query.get("step")), phase: query.get("phase") }; // until it is shown
  let run = null;
  let race = live && location.hash.startsWith(MARK) ? location.hash.slice(MARK.length) : ""; // the run, packed
  let opening = race !== ""; // the run of the fragment has not come yet
  let plain = ["lesson", "example", "turn", "step"].some((name) => query.has(name)) ? "" : null; // what an address without names opens
  let followed = !live || !["lesson", "example"].some((name) => query.has(name)); // else a server has to read the address yet
  let own = ""; // what the address opened as the run began: another one belongs to a run that is still being fetched
  let waiting = 0;

  if (opening) openRace();
  for (const act of ["pointerdown", "keydown"]) addEventListener(act, () => (followed = true), { once: true, capture: true });

  function begin(next) {
    const linked = opening && next.source.includes(NAME);
    if (run && !next.again && !linked) race = "";
    if (run && !next.again) notice.textContent = "";
    if (run || linked) opening = false; // or the link's run was refused, and another one chosen
    run = next;
    own = opens();
    followed ||= asked();
  }

  // Whether the run is the one that the address named: the page may begin with another.
  const asked = () => !opening && (query.get("lesson") ?? String(run.lesson?.number)) === String(run.lesson?.number) && (query.get("example") ?? run.example) === run.example;

  // The end comes before the first step is shown, and says which step that is.
  function end(frame) {
    if (!wanted || !asked() || run.live) return;
    const { turn, show } = part("dialogue");
    if (wanted.turn && turn() && wanted.turn !== turn()) return setTimeout(show, 0, wanted.turn - 1);
    if (wanted.step) frame.show = wanted.step - 1;
    wanted.turn = null;
  }

  function step() {
    if (opening) return;
    const [kind, level] = (asked() && wanted?.phase?.split("-")) || [];
    if (player.end && asked() && !wanted?.turn) wanted = null;
    if (kind) queueMicrotask(() => part("phases").enter(kind, whole(level)));
    plain ??= JSON.stringify(names());
    write();
  }

  function write() {
    if (opening || !followed || waiting || !/^(https?|file):$/.test(location.protocol)) return; // a notebook's cell has no address
    waiting = setTimeout(() => {
      waiting = 0;
      if (opens() !== own) return;
      history.replaceState(history.state, "", here());
      own = opens();
    }, EACH);
  }

  function opens() {
    const now = new URLSearchParams(location.search);
    return JSON.stringify([now.get("lesson"), now.get("example")]);
  }

  const named = () => Boolean(run.lesson || run.example || race);

  function names() {
    if ((live || teach) && !named()) return {};
    const [own, step] = [run.lesson?.step, player.index()];
    const others = live || teach ? { lesson: run.lesson?.number, example: run.lesson ? null : run.example } : {};
    return { ...others, turn: part("dialogue").turn(), step: own === step ? null : step + 1 };
  }

  function here() {
    const address = new URL(location.href);
    const inside = !part("lessons").isAsking() && part("phases").now();
    const found = names();
    const shown = {
      lesson: null, example: null, turn: null, step: null, ...(JSON.stringify(found) === plain ? {} : found),
      phase: inside ? (inside.kind === "guess" ? `guess-${inside.level}` : inside.kind) : null, present: part("present").on() ? 1 : null,
    };
    for (const [name, value] of Object.entries(shown)) {
      if (value === null || value === undefined) address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    }
    if (race) address.hash = MARK + race;
    else if (address.hash.startsWith(MARK)) address.hash = "";
    return address.href;
  }

  // The link to what is shown, which is the address from now on. Throws an `Error` of one line where a run is too large.
  async function share(file) {
    if (!named()) {
      const text = await unpacked(file);
      const made = (await pack(text, "deflate-raw")).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
      if (made.length > LONGEST) throw new Error(`This run is too large for a link (${made.length.toLocaleString("en")} characters, at most ${LONGEST.toLocaleString("en")}): save it as a file.`);
      race = made;
    }
    plain = "";
    const address = here();
    history.replaceState(history.state, "", address);
    own = opens();
    return address;
  }

  // Hands the run to the page as a visitor's file: whoever wrote the link is a stranger, and the server checks it as such.
  async function openRace() {
    try {
      if (race.length > LONGEST) throw new Error(`it has ${race.length.toLocaleString("en")} characters, and at most ${LONGEST.toLocaleString("en")} are read`);
      const text = await unpacked(race.replaceAll("-", "+").replaceAll("_", "/"), MOST, "deflate-raw");
      const files = new DataTransfer();
      files.items.add(new File([text], `${NAME}.json`, { type: "application/json" }));
      for (let tries = 0; !document.querySelector(RACE_FILE) && tries < TRIES; tries++) await new Promise((on) => setTimeout(on, 50));
      const input = document.querySelector(RACE_FILE);
      input.files = files.files;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    } catch (refusal) {
      [opening, race, wanted] = [false, "", null];
      notice.textContent = `The run in this link cannot be opened: ${refusal.constructor === Error ? refusal.message : "it is damaged"}`;
      notice.scrollIntoView({ block: "nearest" });
    }
  }

  return { begin, end, step, phase: write, view: write, write, share, can: () => run && (named() || live) };
}

// A number of an address, which counts from 1; null where there is none.
const whole = (text) => (/^[0-9]{1,6}$/.test(text ?? "") && Number(text) ? Number(text) : null);
