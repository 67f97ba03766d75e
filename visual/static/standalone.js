// Starts the player in a page of its own: frames and scripts are elements of the page, and nothing is fetched.

const modules = Object.fromEntries(await Promise.all(
  [...document.querySelectorAll("script[data-module]")].map(async ({ dataset, textContent }) => [
    dataset.module.slice(0, -3),
    await import(`data:text/javascript;charset=utf-8,${encodeURIComponent(textContent)}`),
  ]),
));
// The iframe of a notebook's cell, if the page is in one: the notebook's theme is the colour of its text.
const cell = window.frameElement?.matches("[data-specllava]") ? window.frameElement : null;
const frames = JSON.parse(document.getElementById("frames").textContent);
const run = JSON.parse(frames[0]);

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const lightText = () => Math.max(...getComputedStyle(cell.parentElement).color.match(/[\d.]+/g).slice(0, 3)) > 127;
const follow = () => document.body.classList.toggle("dark", cell ? lightText() : dark.matches);
dark.addEventListener("change", follow);
follow();

if (cell) {
  document.body.classList.add("in-cell");
  cell.addEventListener("pointerenter", follow); // the notebook may have another theme by now
  const stage = document.querySelector(".stage"); // down to the controls; charts are scrolled to
  new ResizeObserver(() => (cell.style.height = `${Math.ceil(stage.getBoundingClientRect().bottom + window.scrollY) + 8}px`)).observe(document.body);
}

document.title = `${run.prompt.slice(0, 80)} · specllava`;
if (run.picture?.startsWith("data:image/")) {
  const picture = Object.assign(document.createElement("img"), { src: run.picture, alt: "The picture that the models looked at" });
  document.getElementById("picture").replaceChildren(picture);
}
modules.player.mount({
  element: document.getElementById("show"),
  props: { value: frames },
  watch: () => {},
  modules,
});
