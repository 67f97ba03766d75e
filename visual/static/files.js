// What a visitor can take along: the run as JSON or as a page of its own, the tree as SVG or PNG, a link to the step.
// Everything is made in the browser from what it already holds; only the empty page comes from the server.

const SVG = "http://www.w3.org/2000/svg";
const PNG_SCALE = 3; // sharp in print
const KEPT = 60_000; // milliseconds for a download to begin
const LONGEST_NAME = 200; // characters, of a side in a race file
const MARGIN = 16; // pixels around a drawing
const UNNEEDED = ["class", "style", "data-unformatted", "data-math"];
const PRESENTED = ["stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

// frames() and step() tell what is on show; page() gives a blank page in two halves, and is missing on a saved one;
// both() gives the two runs that are compared, each with its frames as `list`, its `name` and its `run`, or null.
export function createFiles(root, { frames, whole, turn, step, page, both }) {
  const menu = root.querySelector(".files");
  const note = menu.querySelector(".menu-note");
  const button = (name) => menu.querySelector(`[data-file="${name}"]`);
  const run = () => JSON.parse(frames()[0]);
  const drawn = () => drawing(root.querySelector(".tree"), getComputedStyle(root).getPropertyValue("--surface"));

  const actions = {
    race: async () => save(await unpacked(JSON.parse(whole().at(-1)).file), "application/json", "specllava-race.json"),
    both: async () => save(await raceOfTwo(both()), "application/json", "specllava-a-and-b.json"),
    page: async () => {
      note.textContent = "Packing the page …";
      const [before, behind] = await page();
      save(before + framesText(both() ? await withBoth(both()) : whole()) + behind, "text/html", "specllava-race.html");
    },
    svg: () => save(drawn(), "image/svg+xml", `specllava-step-${step()}.svg`),
    png: async () => save(await raster(drawn()), "image/png", `specllava-step-${step()}.png`),
    link: async () => {
      const { example, lesson } = run();
      const query = lesson ? { lesson: lesson.number } : { example, ...(turn() && { turn: turn() }), step: step() };
      const address = new URL(`?${new URLSearchParams(query)}`, location.href).href;
      const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
      if (!copied) window.prompt("A link to this step", address); // browsers lend the clipboard to secure pages only
      return copied ? "The link is on the clipboard." : "";
    },
  };

  menu.addEventListener("toggle", offer);
  menu.addEventListener("keydown", (event) => {
    event.stopPropagation(); // arrow keys are the player's elsewhere
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => menu.contains(event.target) || (menu.open = false));
  menu.addEventListener("click", async (event) => {
    const name = event.target.closest("[data-file]")?.dataset.file;
    if (!name) return;
    try {
      note.textContent = (await actions[name]()) ?? "Saved.";
    } catch (error) {
      note.textContent = "This could not be saved. Please try again.";
      console.warn(error);
    }
  });

  return { offer };

  // A run can be saved once it is over; a tree at any time; only recorded examples and lessons have an address.
  function offer() {
    if (!menu.open) return;
    const list = frames();
    const over = list.length > 0 && JSON.parse(list.at(-1)).kind === "end";
    const tree = root.querySelector(".tree .main-svg") !== null;
    for (const name of ["race", "page"]) button(name).disabled = !over;
    for (const name of ["svg", "png"]) button(name).disabled = !tree;
    button("page").hidden = !page;
    button("both").hidden = !both()?.same;
    button("link").hidden = !list.length || !(run().example || run().lesson);
    note.textContent = over ? "" : "The run can be saved when it is over.";
  }
}

// Long texts come packed: gzip, base64.
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

// A race file whose lanes are the two runs' own, and the target alone of whichever has it.
async function raceOfTwo({ a, b }) {
  const races = await Promise.all([a, b].map(async ({ list }) => JSON.parse(await unpacked(JSON.parse(list.at(-1)).file))));
  const [one, other] = [a, b].map(({ name, run }, place) => ({ name: name.slice(0, LONGEST_NAME), trace: races[place].b?.trace ?? races[place][run.led.replace("-", "_")] }));
  const { image, target_only } = { ...races[0], ...races[1] };
  return JSON.stringify({ image, target_only, a: one, b: other });
}

// B's frames, of which the first brings A's along.
async function withBoth({ a, b: { list: [first, ...rest], name } }) {
  const against = await packed(`[${a.list}]`);
  return [JSON.stringify({ ...JSON.parse(first), against, a_name: a.name, b_name: name }), ...rest];
}

// The frames as they stand inside the page's script element: with no "<", no text can end it.
function framesText(list) {
  const [end, ...before] = saved(list).reverse();
  const last = JSON.parse(end);
  for (const [turn, one] of Object.entries(last.held ?? {})) last.held[turn] = saved(one);
  return JSON.stringify([...before.reverse(), JSON.stringify(last)]).replaceAll("<", "\\u003c");
}

function saved([first, ...rest]) {
  return [JSON.stringify({ ...JSON.parse(first), live: false, source: "saved run", example: null }), ...rest];
}

export function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT); // some browsers start to read it only later
}

// --- the tree as a drawing of its own -------------------------------------------------------------

// The chart as it looks on the page, cut to what is drawn. Its colours come from the stylesheet, so they are written
// into the copy.
function drawing(chart, background) {
  const svg = document.createElementNS(SVG, "svg");
  const extent = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (const layer of chart.querySelectorAll(".main-svg")) {
    const copy = layer.cloneNode(true);
    const copies = [...copy.querySelectorAll("*")];
    [...layer.querySelectorAll("*")].forEach((original, place) => present(original, copies[place], extent));
    for (const element of [copy, ...copies]) UNNEEDED.forEach((name) => element.removeAttribute(name));
    copy.querySelectorAll("g:empty").forEach((group) => group.remove());
    svg.append(copy);
  }
  const corner = chart.getBoundingClientRect();
  const [x, y] = [extent.left - corner.left - MARGIN, extent.top - corner.top - MARGIN].map(Math.floor);
  const [width, height] = [extent.right - extent.left + 2 * MARGIN, extent.bottom - extent.top + 2 * MARGIN].map(Math.ceil);
  put(svg, { xmlns: SVG, width, height, viewBox: `${x} ${y} ${width} ${height}` });
  svg.prepend(put(document.createElementNS(SVG, "rect"), { x, y, width, height, fill: background.trim() }));
  return new XMLSerializer().serializeToString(svg);
}

function present(original, copy, extent) {
  const clip = /#[^"')]+/.exec(copy.getAttribute("clip-path") ?? "");
  if (clip) copy.setAttribute("clip-path", `url(${clip[0]})`); // it may name the page's address
  if (original.closest("defs")) return;
  const style = getComputedStyle(original);
  if (!original.matches("path, text, tspan, rect, circle, line")) return put(copy, { opacity: style.opacity });
  for (const name of PRESENTED) copy.setAttribute(name, style.getPropertyValue(name));
  for (const name of ["fill", "stroke"]) paint(copy, name, style);
  const box = original.getBoundingClientRect();
  const unseen = ["fill", "stroke"].every((name) => copy.getAttribute(name) === "none");
  if (unseen || !(box.width || box.height)) return copy.remove();
  for (const side of ["left", "top"]) extent[side] = Math.min(extent[side], box[side]);
  for (const side of ["right", "bottom"]) extent[side] = Math.max(extent[side], box[side]);
}

// Programs that draw SVG know no rgba(): colour and opacity are two attributes there.
function paint(copy, name, style) {
  const [red, green, blue, alpha = "1"] = style.getPropertyValue(name).match(/[\d.]+/g) ?? [];
  const opacity = Number(alpha) * Number(style.getPropertyValue(`${name}-opacity`));
  const width = name === "stroke" ? parseFloat(style.getPropertyValue("stroke-width")) : 1;
  if (blue === undefined || !opacity || !width) return copy.setAttribute(name, "none");
  put(copy, { [name]: `rgb(${red},${green},${blue})`, [`${name}-opacity`]: opacity });
}

function put(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

async function raster(text) {
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    await picture.decode();
  } finally {
    URL.revokeObjectURL(picture.src);
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: PNG_SCALE * picture.width, height: PNG_SCALE * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
