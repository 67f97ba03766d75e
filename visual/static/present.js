// Presentation: the page in front of a room, with large type and without what a room does not need. The button "Present"
// turns it on and off, and Escape off; Space shows a lesson's answer, then the next lesson, and without one the next step.

const PLACES = "#masthead, #columns, #foot, .site-words"; // what present.css changes

export function create(root, { player, step: view, part }) {
  let on = false;

  document.addEventListener("click", ({ target }) => target.closest("[data-present]") && set(!on));
  document.addEventListener("keydown", onSpace, true); // wherever the focus is, and before the player plays
  document.addEventListener("keydown", (event) => event.key === "Escape" && on && !inOpening() && set(false));
  if (new URLSearchParams(location.search).get("present") === "1") set(true);

  const inOpening = () => document.documentElement.dataset.view === "opening";

  function set(next) {
    on = next;
    for (const place of document.querySelectorAll(PLACES)) place.classList.toggle("present", on);
    for (const button of document.querySelectorAll("[data-present]")) button.setAttribute("aria-pressed", String(on));
    if (on) root.querySelector(".stage").focus({ preventScroll: true }); // Space on the button would leave again
    if (!player.run) return;
    view.redraw(); // it has another width
    part("lessons").look();
    part("address").write();
  }

  function onSpace(event) {
    if (!on || inOpening() || event.key !== " " || event.target.closest("button, a, summary, select, input, textarea, dialog")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!part("lessons").onward()) player.actions.next();
  }

  return { on: () => on };
}
