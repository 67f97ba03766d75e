// Chooses the view before the first frame: what the address names, else what was left last, else the opening. An element
// that names a view already (a saved page's) keeps it in the opening's stead.

(() => {
  const VIEWS = ["opening", "explain", "workbench"];
  const page = document.documentElement;
  const query = new URLSearchParams(location.search);
  const named = query.get("view");
  const linked = ["lesson", "example", "turn", "step", "present"].some((name) => query.has(name));
  page.dataset.view = VIEWS.includes(named) ? named : left() ?? (linked ? "explain" : page.dataset.view ?? "opening");

  // A page within another's frame may have no storage.
  function left() {
    try {
      return localStorage.getItem("specllava.view");
    } catch {
      return null;
    }
  }
})();
