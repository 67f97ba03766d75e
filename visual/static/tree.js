// The tree of a step: Plotly draws branches and nodes; words, marks and dashed circles lie in an SVG above it.
// One unit of the figure is one pixel, so that both agree.

const FONTS = [18, 15, 13];
const LONG = 7; // letters of a root that ends above its diamond
const RADIUS = 10.5;
const MARGIN = { left: 34, right: 40, top: 46, bottom: 36 };
const ROW = 96;
const THREADS_AT = 126; // where the trunk runs when threads hang from it
const STRIP = 44; // below the tree, for what happens inside a pass
const COLUMN = 112; // at most, where a tree is shallow
const FONT = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif";
const WIDTHS = [2.5, 4, 6.5, 9]; // of guesses' edges, by the chance of their branch
const SHARES = [0.08, 0.25, 0.45, 1];

const ruler = document.createElement("canvas").getContext("2d");
const measured = new Map();

function textWidth(text, size) {
  const known = `${size} ${text}`;
  if (!measured.has(known)) {
    ruler.font = `600 ${size}px ${FONT}`;
    measured.set(known, ruler.measureText(text).width);
  }
  return measured.get(known);
}

function depthsOf({ parent }) {
  const depths = [];
  parent.forEach((above, node) => depths.push(node ? depths[above] + 1 : 0));
  return depths;
}

// Where every node stands, in pixels: columns from depths, rows from Python. `mix` goes from the rows before the verdict
// (0) to those after it (1). Columns are the same in every phase of a step.
function placeNodes(tree, view, width, height, mix) {
  const depths = depthsOf(tree);
  const upright = narrow();
  const rows = tree.parent.map((_, node) => (tree.open[node] ?? tree.done[node]) * (1 - mix) + tree.done[node] * mix);
  const shown = shownNodes(tree, view);
  const seen = rows.filter((_, node) => shown[node]);
  const [low, high] = [Math.min(...seen), Math.max(...seen, view.ask === undefined ? -Infinity : 1)];
  const deep = Math.max(...depths, view.ask === undefined ? 0 : depths[view.ask] + 1);
  const at = upright ? placeUpright : placeLevel;
  return { shown, upright, ...at(tree, depths, rows, { low, high, deep, width, height }) };
}

function shownNodes(tree, view) {
  const shown = tree.parent.map(() => true);
  tree.parent.forEach((parent, node) => {
    if (view.name === "trunk") shown[node] = !node || (shown[parent] && tree.first[node] === 1);
    else if (tree.kind[node] === "n") shown[node] = view.name === "done";
    else if (view.fold) shown[node] = tree.kind[node] !== "u";
  });
  return shown;
}

function placeLevel(tree, depths, rows, { low, high, deep, width, height }) {
  const long = tree.text[0].length > LONG;
  const left = long ? Math.max(MARGIN.left, textWidth(tree.text[0], 18) - 18) : MARGIN.left;
  const room = width - left - MARGIN.right;
  let size = FONTS[0];
  let gaps = [];
  for (const font of FONTS) {
    size = font;
    gaps = gapsOf(tree, depths, deep, font);
    if (sum(gaps) <= room) break;
  }
  const spare = Math.max(0, room - sum(gaps));
  const even = Math.min(COLUMN, room / Math.max(1, deep));
  if (Math.max(...gaps, 0) <= even) gaps = gaps.map(() => even);
  else gaps = gaps.map((gap) => (spare ? gap + spare / deep : (gap * room) / sum(gaps)));
  const columns = [left];
  for (const gap of gaps) columns.push(columns.at(-1) + gap);
  const row = Math.min(ROW, (height - MARGIN.top - MARGIN.bottom) / Math.max(1, high - low));
  const middle = (height + 20) / 2 - (row * (low + high)) / 2;
  return {
    x: depths.map((depth) => columns[depth]),
    y: rows.map((place) => middle + place * row),
    row,
    size,
    column: Math.min(...gaps, room),
    radius: row < 30 ? Math.max(3.5, row * 0.32) : RADIUS,
  };
}

// What labels of neighbours in a row need between two columns, before and after the verdict.
function gapsOf(tree, depths, deep, size) {
  const gaps = new Array(deep).fill(2 * RADIUS + 6);
  const half = tree.text.map((text) => Math.max(11, textWidth(text, size) / 2));
  for (const rows of [tree.open, tree.done]) {
    const last = new Map(); // by row: the node before
    const order = rows.map((_, node) => node).sort((a, b) => depths[a] - depths[b]);
    for (const node of order) {
      const before = last.get(rows[node]);
      if (before !== undefined && depths[node] === depths[before] + 1 && (before || tree.text[0].length <= LONG)) {
        gaps[depths[before]] = Math.max(gaps[depths[before]], half[before] + half[node] + 9);
      }
      last.set(rows[node], node);
    }
  }
  return gaps;
}

function placeUpright(tree, depths, rows, { low, high, deep, width, height }) {
  const apart = Math.min(116, (width - 70) / Math.max(1, high - low));
  const step = Math.min(52, (height - 34) / Math.max(1, deep));
  const middle = width / 2 - (apart * (low + high)) / 2 - 26;
  return {
    x: rows.map((place) => middle + place * apart),
    y: depths.map((depth) => 18 + depth * step),
    row: apart,
    column: step,
    size: step < 26 ? 15 : 18,
    radius: Math.min(8, step * 0.32),
  };
}

// --- colours ---------------------------------------------------------------------------------------

function palette(element) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(
    ["paper", "edge", "draft", "large", "small", "no", "never"].map((name) => [name, colour(name)]),
  );
}

// A colour with a share of paper in it; both as #rrggbb.
function mixed(colour, paper, share) {
  const parts = [1, 3, 5].map((at) =>
    Math.round(parseInt(colour.slice(at, at + 2), 16) * (1 - share) + parseInt(paper.slice(at, at + 2), 16) * share),
  );
  return `rgb(${parts.join()})`;
}

function looks(tree, view, colours) {
  const decided = view.name === "done";
  return tree.parent.map((_, node) => {
    const kind = node === 0 ? "o" : decided ? tree.kind[node] : "g";
    const own = { o: "large", n: "large", a: "small", r: "no", u: "never", g: "draft" }[kind];
    const doubt = kind === "n" || kind === "r" || kind === "u" ? 0 : (tree.doubt[node] ?? 0.5);
    const fill = kind === "r" || kind === "u" ? colours.paper : mixed(colours[own], colours.paper, doubt);
    return { kind, line: colours[own], fill };
  });
}

// --- the figure --------------------------------------------------------------------------------------

function link(at, from, to) {
  const [x1, y1, x2, y2] = [at.x[from], at.y[from], at.x[to], at.y[to]].map((value) => Math.round(value * 10) / 10);
  if (at.upright) {
    if (x1 === x2) return `M${x1},${y1}L${x2},${y2}`;
    return `M${x1},${y1}C${x1},${y1 + (y2 - y1) * 0.62} ${x2},${y1 + (y2 - y1) * 0.38} ${x2},${y2}`;
  }
  if (Math.abs(y1 - y2) < 0.5) return `M${x1},${y1}L${x2},${y2}`;
  return `M${x1},${y1}C${x1 + (x2 - x1) * 0.6},${y1} ${x1 + (x2 - x1) * 0.42},${y2} ${x2},${y2}`;
}

function edges(tree, view, at, look, colours) {
  const groups = new Map();
  const add = (name, style, path) => {
    if (!groups.has(name)) groups.set(name, { type: "path", layer: "below", line: style, path: "" });
    groups.get(name).path += path;
  };
  tree.parent.forEach((parent, node) => {
    if (!node || !at.shown[node]) return;
    const path = link(at, parent, node);
    const { kind } = look[node];
    if (kind === "a") add("z-accepted", { color: colours.small, width: 5 }, path);
    else if (kind === "n") add("z-own", { color: colours.large, width: 4, dash: "3px,5px" }, path);
    else if (kind === "u") add("never", { color: colours.edge, width: 2.5, dash: "2px,5px" }, path);
    else if (kind === "r") add("refused", { color: colours.edge, width: 2.5 }, path);
    else {
      const level = SHARES.findIndex((share) => tree.branch[node] <= share);
      add(`guess-${level}`, { color: colours.edge, width: WIDTHS[level] }, path);
    }
  });
  for (const [node, count] of view.stubs ? tree.stubs : [])
    if (at.shown[node] && !at.upright) add("stubs", { color: colours.edge, width: 1.5 }, stubs(at, node, count));
  return [...groups].sort(([one], [two]) => (one < two ? -1 : 1)).map(([, shape]) => shape);
}

// Pruned guesses: short strokes below the node that they would have followed.
function stubs(at, node, count) {
  let path = "";
  for (let number = 0; number < Math.min(count, 4); number += 1) {
    const angle = ((28 + 20 * number) * Math.PI) / 180;
    const [near, far] = [at.radius + 2, at.radius + 8];
    path += `M${at.x[node] + near * Math.cos(angle)},${at.y[node] + near * Math.sin(angle)}L${at.x[node] + far * Math.cos(angle)},${at.y[node] + far * Math.sin(angle)}`;
  }
  return path;
}

const SYMBOLS = { o: "diamond", n: "diamond", r: "square" }; // of the other kinds: circles

function markers(tree, at, look) {
  const size = { circle: 2 * at.radius, diamond: 2 * at.radius - 1, square: 2 * at.radius - 3 };
  const nodes = tree.parent.map((_, node) => node); // those that were never reached are dashed, above the figure
  const drawn = nodes.filter((node) => at.shown[node] && look[node].kind !== "u");
  return drawn.map((node) => {
    const symbol = SYMBOLS[look[node].kind] ?? "circle";
    return { x: at.x[node], y: at.y[node], symbol, size: size[symbol], ...look[node] };
  });
}

const PLAIN = { staticPlot: true, displayModeBar: false };

// Draws dots and branches. All dots are one trace, and settings are given once: Plotly goes through each of their options.
function drawFigure(field, dots, shapes) {
  const { width, height, plot } = field;
  const column = (name) => dots.map((dot) => dot[name]);
  const line = { width: dots[0]?.size < 13 ? 1.8 : 2.5, color: column("line") };
  const marker = { symbol: column("symbol"), size: column("size"), opacity: 1, color: column("fill"), line };
  const trace = { type: "scatter", mode: "markers", hoverinfo: "skip", cliponaxis: false, marker };
  const axis = { visible: false, fixedrange: true };
  const axes = { xaxis: { ...axis, range: [0, width] }, yaxis: { ...axis, range: [height, 0] } };
  const clear = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 0, r: 0, t: 0, b: 0 } };
  const still = { autosize: false, showlegend: false, hovermode: false, dragmode: false };
  const data = [{ ...trace, x: column("x"), y: column("y") }];
  field.plotly.react(plot, data, { width, height, shapes, ...axes, ...clear, ...still }, plot.data ? undefined : PLAIN);
}

// Draws a step into the field.
function drawTree(field, tree, view, mix = view.name === "done" ? 1 : 0) {
  const [width, height] = [field.width, field.height];
  const strip = (view.cache || view.coin !== undefined) && !narrow() ? STRIP : 0;
  const at = placeNodes(tree, view, width, height - strip, mix);
  if (view.fold && mix === 1) foldRefused(tree, at);
  if (view.threads && !at.upright) raise(at, THREADS_AT);
  const look = looks(tree, view, field.colours);
  drawFigure(field, markers(tree, at, look), edges(tree, view, at, look, field.colours));
  drawUnder(field, tree, view, at, width, height);
  drawWords(field, tree, view, at, look, width, height);
}

// Moves the trunk up, where threads hang from it.
function raise(at, row) {
  const up = at.y[0] - row;
  at.y = at.y.map((y) => y - up);
}

// Refused guesses close to the word that they would have followed.
function foldRefused(tree, at) {
  const turn = new Map();
  tree.parent.forEach((parent, node) => {
    if (tree.kind[node] !== "r") return;
    const side = (turn.get(parent) ?? 0) % 2 ? 1 : -1;
    const further = Math.floor((turn.get(parent) ?? 0) / 2);
    turn.set(parent, (turn.get(parent) ?? 0) + 1);
    if (at.upright) [at.x[node], at.y[node]] = [at.x[parent] - 74, at.y[parent] + 30 * turn.get(parent)];
    else [at.x[node], at.y[node]] = [at.x[parent] + 46, at.y[parent] + side * (62 + 40 * further)];
  });
}
