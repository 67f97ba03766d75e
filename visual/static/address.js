// What is recorded has an address: it names lesson or example, turn, step, phase and presentation, follows what is shown
// without an entry in the history, and opens with what it names.

const EACH = 300; // milliseconds between two changes: browsers refuse more than some hundred in half a minute
export const MARK = "#race="; // before a live run, which addresses once held
export const HELD = "This link held a live run, which links no longer do: save a run as a file instead.";

export function create(root, { player, part, live, teach }) {
  const notice = root.querySelector(".link-notice");
  const query = new URLSearchParams(location.search);
  let wanted = { turn: whole(query.get("turn")), step: whole(query.get("step")), phase: query.get("phase") }; // until it is shown
  let run = null;
  let plain = ["lesson", "example", "turn", "step"].some((name) => query.has(name)) ? "" : null; // what an address without names opens
  let followed = !live || !["lesson", "example"].some((name) => query.has(name)); // else a server has to read the address yet
  let own = ""; // what the address opened as the run began: another one belongs to a run that is still being fetched
  let waiting = 0;

  if (live && location.hash.startsWith(MARK)) notice.textContent = HELD;
  for (const act of ["pointerdown", "keydown"]) addEventListener(act, () => (followed = true), { once: true, capture: true });

  function begin(next) {
    if (run && !next.again) notice.textContent = "";
    run = next;
    own = opens();
    followed ||= asked();
  }

  // Whether the run is the one that the address named: the page may begin with another.
  const asked = () => (query.get("lesson") ?? String(run.lesson?.number)) === String(run.lesson?.number) && (query.get("example") ?? run.example) === run.example;

  // The end comes before the first step is shown, and says which step that is.
  function end(frame) {
    if (!wanted || !asked() || run.live) return;
    const { turn, show } = part("dialogue");
    if (wanted.turn && turn() && wanted.turn !== turn()) return setTimeout(show, 0, wanted.turn - 1);
    if (wanted.step) frame.show = wanted.step - 1;
    wanted.turn = null;
  }

  function step() {
    const [kind, level] = (asked() && wanted?.phase?.split("-")) || [];
    if (player.end && asked() && !wanted?.turn) wanted = null;
    if (kind) queueMicrotask(() => part("phases").enter(kind, whole(level)));
    plain ??= JSON.stringify(names());
    write();
  }

  function write() {
    if (!followed || waiting || !/^(https?|file):$/.test(location.protocol)) return; // a notebook's cell has no address
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

  const named = () => Boolean(run.lesson || run.example);

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
    if (address.hash.startsWith(MARK)) address.hash = "";
    return address.href;
  }

  // The link to what is shown, which is the address from now on.
  function share() {
    plain = "";
    const address = here();
    history.replaceState(history.state, "", address);
    own = opens();
    return address;
  }

  return { begin, end, step, phase: write, view: write, write, share, can: () => run && named() };
}

// A number of an address, which counts from 1; null where there is none.
const whole = (text) => (/^[0-9]{1,6}$/.test(text ?? "") && Number(text) ? Number(text) : null);
