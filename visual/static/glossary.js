// The glossary: every word leads to the part of the page that shows its meaning.

const SHOWN = 2600; // milliseconds for which a part stays marked

export function createGlossary(root) {
  let marked = null;
  root.querySelector(".glossary").addEventListener("click", (event) => {
    const selector = event.target.dataset.show;
    const place = selector && root.querySelector(selector);
    if (!place) return;
    marked?.classList.remove("pointed-at");
    marked = place;
    place.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    place.classList.add("pointed-at");
    setTimeout(() => place.classList.remove("pointed-at"), SHOWN);
  });
}
