// The static edition: examples and lessons in the page's own player, from plain files alone.
// What a file or a model says enters the page as textContent only.

import { followLink } from "./site_link.js";
import { opened } from "./site_frames.js";
import { HELD, MARK } from "./address.js";

const find = (selector) => document.querySelector(selector);
const site = JSON.parse(find("#site").textContent);
const names = site.modules.map((name) => name.slice(0, -3));
const modules = Object.fromEntries(await Promise.all(names.map(async (name) => [name, await import(`./${name}.js`)])));
const address = (name) => new URL(name, document.baseURI).href;
const none = find("#picture").firstElementChild;
let shown = []; // frames
let changed = null; // called when other frames are shown
let asked = 0; // the latest request: those before it come too late

follow();
window.addEventListener("popstate", () => (!location.hash || location.hash.startsWith(MARK)) && follow()); // another place of the page is no other run
theme();
find("#site-waiting").remove();
find(".skip").addEventListener("click", () => find(".stage").focus());
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-opens]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(new URL(link.href).searchParams);
  if (link.closest(".site-words")) find("#columns").scrollIntoView({ block: "start" });
});

function go(query) {
  for (const kept of ["present", "__theme"]) {
    const value = new URLSearchParams(location.search).get(kept);
    if (value !== null) query.set(kept, value);
  }
  history.pushState(null, "", `?${query}`);
  return follow();
}

// Opens what the page's address names; the first example where it names nothing.
async function follow() {
  const link = followLink(new URLSearchParams(location.search), site.examples, site.lessons) ?? { example: site.examples[0], notice: "" };
  const request = ++asked;
  try {
    const { file } = link.lesson ?? link.example;
    const answer = await fetch(address(file));
    if (!answer.ok) throw new Error(`${file}: ${answer.status} ${answer.statusText}`);
    const frames = opened(await answer.json(), { turn: link.turn, step: link.step, lesson: link.lesson?.words });
    if (request !== asked) return;
    show(frames);
    say(location.hash.startsWith(MARK) ? HELD : link.notice, "warning");
  } catch (error) {
    if (request === asked) say(`This run could not be loaded (${error.message}). Please try again.`, "error");
  }
}

function show(frames) {
  const run = JSON.parse(frames[0]);
  const image = run.picture && Object.assign(new Image(), { src: run.picture, alt: "The picture that the models looked at" });
  find("#picture").replaceChildren(image || none);
  document.title = `${run.lesson?.title ?? run.prompt.slice(0, 80)} · specllava`;
  for (const link of document.querySelectorAll("a[data-opens]")) {
    const current = link.dataset.opens === (run.lesson ? `lesson ${run.lesson.number}` : `example ${run.example}`);
    if (current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  shown = frames;
  if (changed) changed();
  else start();
}

function start() {
  modules.player.mount({
    element: find("#show"),
    props: { get value() { return shown; } },
    watch: (_, heard) => (changed = heard),
    plotly: address(site.plotly),
    page: blank,
    teach: (number) => go(new URLSearchParams({ lesson: number })),
    modules,
  });
}

// A page to save a run in, in two halves; the drawing library is put into it only here.
async function blank() {
  const [page, plotly] = await Promise.all([site.blank, site.plotly].map(async (name) => (await fetch(address(name))).text()));
  const [before, behind] = page.split("<!-- frames -->");
  return [before, behind.split("<!-- plotly -->").join(plotly)];
}

function say(text, kind = "info") {
  const notice = find("#site-notice");
  notice.textContent = text;
  if (text) notice.scrollIntoView({ block: "nearest" });
  Object.assign(notice.dataset, { kind, word: { error: "Not possible", warning: "Careful", info: "Note" }[kind] });
}

function theme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = new URLSearchParams(location.search).get("__theme"); // as on the live page
  const paint = () => document.body.classList.toggle("dark", chosen ? chosen === "dark" : dark.matches);
  dark.addEventListener("change", paint);
  paint();
}
