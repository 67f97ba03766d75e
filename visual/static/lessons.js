// Lessons: a question about the step on show, the answer when it is asked for, and the place that both speak of pointed
// at. While the question is open, what gives the answer away is hidden: verdicts on the tree, the sentence, the step's words.

const SHOWN = 4000; // milliseconds for which a part stays marked
const TRIES = 100;
const PLACES = {
  lanes: ".lanes", timeline: ".timeline", tree: ".scroller", mask: ".mask", cache: ".kv-cache", coin: ".coin-panel", verdict: ".verdict", grounding: ".lanes",
};
const BEFORE = { ...PLACES, coin: ".scroller", grounding: ".scroller" }; // where the answer's place would give it away
const ASKED_AT = { check: "check", keep: "check" }; // the phase in which a question is asked about another one's result
const GUESSES = { kind: "guess", level: Infinity, forks: [] }; // every guess, none judged

export function create(root, { player, step: view, part, live, teach }) {
  const card = root.querySelector(".lesson");
  const columns = root.closest("#columns");
  const find = (name) => card.querySelector(`.lesson-${name}`);
  const button = (name) => card.querySelector(`[data-lesson=${name}]`);
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let lesson = null;
  let frame = null; // of the lesson's step, once it has been shown
  let at = 0; // its index
  let answered = false;
  let posing = false; // the phase that changes is the lesson's own doing

  card.addEventListener("click", (event) => {
    const action = event.target.closest("[data-lesson]")?.dataset.lesson;
    if (action === "answer") tell();
    if (action === "place") point();
    if (action === "previous") turn(-1);
    if (action === "next") turn(1);
    if (event.detail && part("present").on()) root.querySelector(".stage").focus({ preventScroll: true }); // Space goes on
  });
  document.addEventListener("click", ({ target }) => target.closest(".learn-card") || openMenu()?.click());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !openMenu()) return;
    event.stopPropagation();
    openMenu().focus();
    openMenu().click();
  }, true);

  function begin(run) {
    root.classList.remove("asking");
    [lesson, frame, answered] = [run.lesson, null, false];
    card.hidden = !lesson;
    if (!lesson) return delete columns.dataset.place;
    columns.dataset.place = lesson.place;
    if (document.documentElement.dataset.view === "opening") part("views").open("explain");
    find("number").textContent = `Lesson ${lesson.number} of ${lesson.count}`;
    find("title").textContent = lesson.title;
    find("question").textContent = lesson.question;
    find("answer").textContent = "";
    find("picture").hidden = !run.picture;
    if (run.picture) find("picture").src = run.picture;
    find("progress").max = lesson.count;
    find("progress").value = lesson.number;
    button("answer").hidden = false;
    button("place").hidden = true;
    root.classList.add("asking");
    for (const [name, by] of [["previous", -1], ["next", 1]]) button(name).hidden = !leads(by);
  }

  // The step that the lesson is about: its guesses, and in view together with the question. At another one nothing is asked.
  function step(next) {
    if (!lesson) return;
    if (frame) return next === frame || uncover();
    frame = next;
    at = lesson.step ?? player.index();
    if (at !== player.index()) return uncover(); // an address opened another one
    requestAnimationFrame(() => {
      if (frame !== next || player.index() !== at || part("phases").now()) return; // an address opened a phase
      if (lesson.node !== null) view.choose(lesson.node);
      if (ASKED_AT[lesson.phase]) inside(ASKED_AT[lesson.phase]);
      else part("phases").pose(GUESSES);
      mark(placeOf(BEFORE));
      look();
    });
  }

  function inside(kind) {
    posing = true;
    part("phases").enter(kind);
    posing = false;
    for (const fold of root.querySelectorAll(".mask-fold")) fold.open = lesson.place === "mask"; // the cache has its room
  }

  // Who goes inside the step, or leaves it, has seen what was hidden.
  const phase = () => posing || uncover();

  function uncover() {
    if (!root.classList.contains("asking")) return;
    root.classList.remove("asking");
    part("phases").pose(null);
  }

  // Scrolls to the question, or to the place above it that it speaks of.
  function look() {
    if (!lesson) return;
    const place = root.querySelector(placeOf(BEFORE));
    const above = place.getBoundingClientRect().bottom < card.getBoundingClientRect().top && place.offsetHeight + card.offsetHeight < window.innerHeight / 2;
    (above ? place : card).scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  }

  function tell() {
    answered = true;
    find("answer").textContent = lesson.answer;
    button("answer").hidden = true;
    button("place").hidden = false;
    uncover();
    if (lesson.place === "grounding") part("grounding").mark();
    if (lesson.phase && player.index() === at) inside(lesson.phase);
    part("address").write();
  }

  function point() {
    if (player.index() !== at) player.jump(at);
    if (lesson.phase) inside(lesson.phase);
    mark(placeOf(PLACES))?.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  }

  const placeOf = (places) => (Object.hasOwn(places, lesson.place) ? places[lesson.place] : places.tree);

  // Marks a part, unfolded where it is folded.
  function mark(selector) {
    const place = root.querySelector(selector);
    if (!place) return null;
    for (const fold of [place.closest("details"), ...place.querySelectorAll(":scope > details:not(.table)")]) if (fold) fold.open = true;
    place.classList.add("pointed-at");
    setTimeout(() => place.classList.remove("pointed-at"), SHOWN);
    return place;
  }

  // A saved page holds one lesson only.
  const leads = (by) => (live || teach) && lesson.number + by >= 1 && lesson.number + by <= lesson.count;

  // The buttons of the page's menu open lessons, and close it; Gradio makes them when the menu is opened for the first time.
  async function turn(by) {
    if (!leads(by)) return;
    if (teach) return teach(lesson.number + by);
    const buttons = () => document.querySelectorAll("button.teach");
    if (!buttons().length) document.querySelector(".learn-card button.label-wrap").click();
    for (let tries = 0; !buttons().length && tries < TRIES; tries++) await new Promise((on) => setTimeout(on, 20));
    buttons()[lesson.number - 1 + by]?.click();
  }

  // The answer, then the next lesson. Returns whether there is a lesson to go on in.
  function onward() {
    if (lesson && !answered) tell();
    else if (lesson) turn(1);
    return Boolean(lesson);
  }

  return { begin, step, phase, look, onward, tell: () => lesson && !answered && tell(), isAsking: () => root.classList.contains("asking") };
}

const openMenu = () => document.querySelector(".learn-card button.label-wrap.open");
