// Lessons: a question about the step on show, the answer when it is asked for, and the place that both speak of pointed
// at. `?present=1` shows one to a room: large type, and Space goes on, through the phases to the answer to the next one.

const SHOWN = 4000; // milliseconds that a place stays marked
const PLACES = {
  lanes: ".lanes", timeline: ".timeline", tree: ".scroller", mask: ".mask", cache: ".kv-cache", coin: ".coin-panel", pays: ".pays",
};

export function create(root, { player, step: view, part }) {
  const card = root.querySelector(".lesson");
  const find = (name) => card.querySelector(`.lesson-${name}`);
  const presenting = new URLSearchParams(location.search).get("present") === "1";
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let lesson = null;
  let opened = false; // the lesson's step has been shown
  let answered = false;

  document.documentElement.classList.toggle("present", presenting);
  card.addEventListener("click", ({ target }) => {
    const action = target.closest("[data-lesson]")?.dataset.lesson;
    if (action === "answer") tell();
    if (action === "place") point();
    if (action === "previous") turn(-1);
    if (action === "next") turn(1);
  });
  if (presenting) root.querySelector(".stage").addEventListener("keydown", onSpace, true); // before the player plays

  function begin(run) {
    lesson = run.lesson;
    opened = answered = false;
    card.hidden = !lesson;
    if (!lesson) return;
    find("number").textContent = `Lesson ${lesson.number} of ${lesson.count}`;
    find("title").textContent = lesson.title;
    find("question").textContent = lesson.question;
    find("answer").textContent = "";
    find("progress").max = lesson.count;
    find("progress").value = lesson.number;
    card.querySelector("[data-lesson=answer]").hidden = false;
    card.querySelector("[data-lesson=place]").hidden = true;
    for (const [name, by] of [["previous", -1], ["next", 1]]) card.querySelector(`[data-lesson=${name}]`).hidden = !button(by);
  }

  // The step that the lesson is about: opened at its phase, and in view together with the question.
  function step() {
    if (!lesson || opened) return;
    opened = true;
    requestAnimationFrame(() => {
      if (lesson.node !== null) view.choose(lesson.node);
      if (lesson.phase) part("phases").enter(lesson.phase);
      card.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
      if (presenting) root.querySelector(".stage").focus({ preventScroll: true });
      if (lesson.place !== "pays") mark(PLACES[lesson.place]);
    });
  }

  function tell() {
    answered = true;
    find("answer").textContent = lesson.answer;
    card.querySelector("[data-lesson=answer]").hidden = true;
    card.querySelector("[data-lesson=place]").hidden = false;
  }

  function point() {
    const place = mark(PLACES[lesson.place]);
    place?.scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
  }

  function mark(selector) {
    const place = root.querySelector(selector);
    place?.classList.add("pointed-at");
    setTimeout(() => place?.classList.remove("pointed-at"), SHOWN);
    return place;
  }

  // The page's own buttons open lessons; a saved page has none.
  function button(by) {
    return lesson && document.querySelectorAll("button.teach")[lesson.number - 1 + by];
  }

  function turn(by) {
    button(by)?.click();
  }

  function onSpace(event) {
    if (event.key !== " " || event.target.closest("button, summary, select, input")) return;
    event.preventDefault();
    event.stopPropagation();
    if (part("phases").onward()) return;
    if (lesson && !answered) return tell();
    if (lesson) return turn(1);
    player.actions.next();
  }

  return { begin, step };
}
