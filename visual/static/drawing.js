// A chart as a drawing of its own: a copy of its SVG that needs no stylesheet.

export const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 16; // pixels around what is drawn
const UNNEEDED = ["class", "style", "data-unformatted", "data-math", "data-node"];
const PRESENTED = ["stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];
const LEFT_OUT = ".tracemarked"; // the halos of what is chosen on the page

// The chart as it looks on the page, cut to what is drawn, or `whole`: then every drawing of it has one size. Its colours
// come from the stylesheet, so they are written into the copy. Returns the layers and the box that they fill.
export function drawingOf(chart, whole = false) {
  const layers = document.createElementNS(SVG, "g");
  const extent = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (const layer of chart.querySelectorAll(".main-svg")) {
    const copy = layer.cloneNode(true);
    const copies = [...copy.querySelectorAll("*")];
    const chosen = [...copy.querySelectorAll(LEFT_OUT)];
    [...layer.querySelectorAll("*")].forEach((original, place) => original.closest(LEFT_OUT) || present(original, copies[place], extent));
    chosen.forEach((halo) => halo.remove());
    for (const element of [copy, ...copies]) UNNEEDED.forEach((name) => element.removeAttribute(name));
    copy.querySelectorAll("g:empty").forEach((group) => group.remove());
    layers.append(copy);
  }
  const corner = chart.getBoundingClientRect();
  const { left, top, right, bottom } = whole ? corner : extent;
  const margin = whole ? 0 : MARGIN;
  const [x, y] = [left - corner.left - margin, top - corner.top - margin].map(Math.floor);
  const [width, height] = [right - left + 2 * margin, bottom - top + 2 * margin].map(Math.ceil);
  return { layers, x, y, width, height };
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

// Programs that draw SVG know no rgba() and no color(): colour and opacity are two attributes there.
function paint(copy, name, style) {
  const value = style.getPropertyValue(name);
  const [red, green, blue, alpha = 1] = (value.replace("srgb", "").match(/[\d.]+/g) ?? []).map(Number);
  const opacity = alpha * Number(style.getPropertyValue(`${name}-opacity`));
  const width = name === "stroke" ? parseFloat(style.getPropertyValue("stroke-width")) : 1;
  if (blue === undefined || !opacity || !width) return copy.setAttribute(name, "none");
  const parts = [red, green, blue].map((part) => Math.round(value.startsWith("color(") ? 255 * part : part));
  put(copy, { [name]: `rgb(${parts.join(",")})`, [`${name}-opacity`]: opacity });
}

export function put(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The PNG of an SVG.
export async function raster(text, scale) {
  const picture = new Image();
  picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    await picture.decode();
  } finally {
    URL.revokeObjectURL(picture.src);
  }
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.round(scale * picture.width), height: Math.round(scale * picture.height) });
  canvas.getContext("2d", { alpha: false }).drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
