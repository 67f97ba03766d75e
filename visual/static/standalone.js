// Starts the player in a page of its own: frames and scripts are elements of the page, and nothing is fetched.

const modules = Object.fromEntries(await Promise.all(
  [...document.querySelectorAll("script[data-module]")].map(async ({ dataset, textContent }) => [
    dataset.module.slice(0, -3),
    await import(`data:text/javascript;charset=utf-8,${encodeURIComponent(textContent)}`),
  ]),
));
const frames = JSON.parse(document.getElementById("frames").textContent);
const run = JSON.parse(frames[0]);

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", follow);
follow();

document.title = `${run.prompt.slice(0, 80)} · specllava`;
if (run.picture?.startsWith("data:image/")) {
  const picture = Object.assign(document.createElement("img"), { src: run.picture, alt: "The picture that the models looked at" });
  document.getElementById("picture").replaceChildren(picture);
}
modules.player.mount({ element: document.getElementById("show"), props: { value: frames, pays: document.getElementById("pays").textContent }, watch: () => {}, modules });
