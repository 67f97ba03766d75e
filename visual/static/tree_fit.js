// Fits a step's figure to its card: stretched to the card's width and to a height that stays through a run, or upright
// on a narrow screen, where the tree grows downwards so that nobody has to scroll sideways. Only numbers change: which
// traces, labels and colours there are is Python's.

const NARROW = 600; // pixels of a card below which the tree is upright
const SHORTEST = 540; // units across that a card shows at the least; a share of its width means the same on any screen
const HEIGHT = 190; // pixels that every step has, so that nothing below it jumps
const ROW = 29; // pixels of a row in a tree that needs more than that: no label touches the node above it
const INSIDE = { row: 52, height: 360, level: 46 }; // of a row with a line of words above its label, and as long as the tree is no higher; of an upright level
const LEVEL = 38; // pixels between depths of an upright tree
const TALLEST = 1000;
const [MARKER, LETTER] = [18, 7.5]; // pixels of a marker, and of a letter beside it
const [STUBS, TIP, WORDS] = [24, 6, 20]; // pixels from the lowest node down to the bracket, of its ends, and of the words below it
const JUDGED = ["accepted", "rejected", "unreached"];
const EMPTY = " "; // as of visual/figures/tree_figure.py
const FOLD = 14; // columns no farther apart than this belong to a fold
const STRAIGHT = 0.55; // of a level, where a lone guess follows a lone guess: the first fork is soon in sight

// Returns the figure's data and layout for a card `width` pixels wide, and the pixels that the drawing takes,
// at least `least` of them high unless it is upright. `inside` makes room for what the target says at every guess.
export function fit({ data, layout }, width, { least = HEIGHT, inside = false } = {}) {
  return width < NARROW ? upright(data, layout, width, inside) : level(data, layout, least, inside);
}

function level(data, layout, least, inside) {
  const { rows, width: natural, checked } = layout.meta;
  const [left] = layout.xaxis.range;
  const range = [left, left + Math.max(SHORTEST, natural)];
  const [low, high] = layout.yaxis.range;
  const tall = Math.min(TALLEST, Math.max(least, rows * ROW, inside ? Math.min((high - low) * INSIDE.row, INSIDE.height) : 0));
  const pixel = (high - low) / tall;
  const lowest = Math.min(...data.flatMap(({ y }) => y).filter((y) => y !== null));
  const bottom = checked ? Math.min(low, lowest - (STUBS + TIP + WORDS) * pixel) : low;
  const drawn = { ...layout, xaxis: { ...layout.xaxis, range }, yaxis: { ...layout.yaxis, range: [bottom, high] }, ...bracket(data, layout, lowest - STUBS * pixel, pixel) };
  return { data, layout: drawn, height: Math.ceil((high - bottom) / pixel), width: natural };
}

// A bracket below everything that one pass of the target judged; it begins at height `top`.
function bracket(data, { meta, shapes }, top, pixel) {
  if (!meta.checked) return {};
  const ends = data.filter(({ name }) => JUDGED.includes(name)).flatMap(({ x }) => x);
  const [left, right] = [Math.min(...ends) - 14, Math.max(...ends) + 14];
  const [tip, line] = [top, top - TIP * pixel].map((y) => y.toFixed(3));
  const path = `M${left},${tip}L${left},${line}L${right},${line}L${right},${tip}`;
  const text = { text: meta.checked, x: left, y: Number(line), xanchor: "left", yanchor: "top", showarrow: false, font: { size: 12.5 }, name: "checked" };
  return { shapes: [...shapes, { type: "path", name: "checked", layer: "below", path, line: { color: "#8b9096", width: 1.5 } }], annotations: [text] };
}

function upright(data, layout, width, inside) {
  const columns = [...new Set(data.flatMap(({ x }) => x).filter((x) => x !== null))].sort((a, b) => a - b);
  const lone = columns.map((column) => data.flatMap(({ x }) => x).filter((x) => x === column).length === 1);
  const depths = columns.map(() => 0);
  for (let i = 1; i < columns.length; i++) {
    const most = lone[i] && lone[i - 1] && !inside ? STRAIGHT : 1;
    depths[i] = depths[i - 1] + Math.min(most, (columns[i] - columns[i - 1]) / (FOLD * 2));
  }
  const down = (x) => (x === null ? null : -between(columns, depths, x));
  const rows = data.flatMap(({ y }) => y).filter((y) => y !== null);
  const across = width / (Math.max(...rows) - Math.min(...rows) + 1.7); // pixels of a row
  // Letters that a label has before the next node of its depth; none where not even three have room.
  const letters = (x, y) => {
    const gaps = data.flatMap((trace) => trace.x.map((other, place) => (other === x ? trace.y[place] - y : 0))).filter((gap) => gap > 0);
    return Math.floor((Math.min(Math.max(...rows) - y + 1.2, ...gaps) * across - MARKER) / LETTER);
  };
  const short = (label, most) => (label.includes("&") || label.length <= most ? label : most < 3 ? EMPTY : `${label.slice(0, most - 1)}…`);
  const turned = data.map((trace) => ({
    ...trace, x: trace.y, y: trace.x.map(down), ...(trace.text && { text: trace.text.map((label, place) => short(label, letters(trace.x[place], trace.y[place]))), textposition: "middle right" }),
  }));
  const shapes = layout.shapes.map((shape) => ({ ...shape, path: shape.path.replace(/(-?[\d.]+),(-?[\d.]+)/g, (_, x, y) => `${y},${down(Number(x))}`) }));
  const deepest = depths.at(-1) ?? 0;
  const [left, right] = [Math.min(...rows) - 0.5, Math.max(...rows) + 1.2];
  const size = { xaxis: { ...layout.xaxis, range: [left, right] }, yaxis: { ...layout.yaxis, range: [-deepest - 1.3, 0.7] } };
  const said = { text: layout.meta.checked, x: left, y: -deepest - 0.6, xanchor: "left", yanchor: "top", showarrow: false, font: { size: 11 }, name: "checked" };
  const annotations = layout.meta.checked ? [said] : [];
  return { data: turned, layout: { ...layout, shapes, annotations, ...size }, height: (deepest + 2) * (inside ? INSIDE.level : LEVEL), width };
}

// Linear between the columns: control points of an edge lie between two of them.
function between(columns, depths, x) {
  const right = columns.findIndex((column) => column >= x);
  if (right <= 0) return right === 0 ? depths[0] : depths.at(-1);
  const share = (x - columns[right - 1]) / (columns[right] - columns[right - 1]);
  return Math.round(1000 * (depths[right - 1] + share * (depths[right] - depths[right - 1]))) / 1000;
}
