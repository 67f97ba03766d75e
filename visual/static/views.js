// The three views of one run: the opening, Explain, Workbench. The document's element has the name (view_choice.js sets it
// first); here it changes, and is kept in the address and in the browser. views.css shows what belongs to it.

export function create(root, { player, step }) {
  const page = document.documentElement;
  const links = () => document.querySelectorAll("[data-opens-view]");

  // Names the view where the stylesheet looks for it, and marks its link.
  function mark() {
    for (const place of document.querySelectorAll("#masthead, #columns, #foot")) place.dataset.view = page.dataset.view;
    for (const link of links()) {
      if (link.dataset.opensView === page.dataset.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  function open(view) {
    if (view === page.dataset.view) return;
    page.dataset.view = view;
    const address = new URL(location);
    address.searchParams.set("view", view);
    history.replaceState(history.state, "", address);
    keep(view === "opening" ? "explain" : view);
    mark();
    window.scrollTo({ top: 0 });
    player.tell("view", view);
    step.redraw(); // it has another width
    window.dispatchEvent(new Event("resize")); // Plotly draws charts that were hidden
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-opens-view]");
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(link.dataset.opensView);
  });

  mark();
  return { open, begin: mark };
}

// A page within another's frame may have no storage: the next visit begins with the opening again.
function keep(view) {
  try {
    localStorage.setItem("specllava.view", view);
  } catch (refused) {
    console.debug("the view is not remembered:", refused.name);
  }
}
