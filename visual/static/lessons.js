// Lessons: a question about the step on show, the answer when it is asked for, and the place that both speak of pointed
// at. `?present=1` shows one to a room: large type, and Space goes on, through the phases to the answer to the next one.

const SHOWN = 4000; // milliseconds for which a part stays marked
const TRIES = 100;
const PLACES = {
  lanes: ".lanes", timeline: ".timeline", tree: ".scroller", mask: ".mask", cache: ".kv-cache", coin: ".coin-panel", pays: ".pays",
};

export function create(root, { player, step: view, part, live, teach }) {
  const card = root.querySelector(".lesson");
  const find = (name) => card.querySelector(`.lesson-${name}`);
  const presenting = new URLSearchParams(location.search).get("present") === "1";
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let lesson = null;
  let opened = false; // the lesson's step has been shown
  let answered = false;

  root.closest("#columns").classList.toggle("present", presenting);
  card.addEventListener("click", ({ target }) => {
    const action = target.closest("[data-lesson]")?.dataset.lesson;
    if (action === "answer") tell();
    if (action === "place") point();
    if (action === "previous") turn(-1);
    if (action === "next") turn(1);
  });
  if (presenting) document.addEventListener("keydown", onSpace, true); // wherever the focus is, and before the player plays

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
    for (const [name, by] of [["previous", -1], ["next", 1]]) card.querySelector(`[data-lesson=${name}]`).hidden = !leads(by);
  }

  // The step that the lesson is about: opened at its phase, and in view together with the question.
  function step() {
    if (!lesson || opened) return;
    opened = true;
    requestAnimationFrame(() => {
      if (lesson.node !== null) view.choose(lesson.node);
      if (lesson.phase) part("phases").enter(lesson.phase);
      card.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
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

  // A saved page holds one lesson only.
  const leads = (by) => (live || teach) && lesson.number + by >= 1 && lesson.number + by <= lesson.count;

  // The buttons of the page's menu open lessons; Gradio makes them when the menu is opened for the first time.
  async function turn(by) {
    if (!leads(by)) return;
    if (teach) return teach(lesson.number + by);
    const buttons = () => document.querySelectorAll("button.teach");
    const menu = document.querySelector(".learn-card button.label-wrap");
    const closed = !buttons().length;
    if (closed) menu.click();
    for (let tries = 0; !buttons().length && tries < TRIES; tries++) await new Promise((on) => setTimeout(on, 20));
    buttons()[lesson.number - 1 + by]?.click();
    if (closed) menu.click();
  }

  function onSpace(event) {
    if (event.key !== " " || event.target.closest("button, summary, select, input, textarea")) return;
    event.preventDefault();
    event.stopPropagation();
    if (part("phases").onward()) return;
    if (lesson && !answered) return tell();
    if (lesson) return turn(1);
    player.actions.next();
  }

  return { begin, step };
}
