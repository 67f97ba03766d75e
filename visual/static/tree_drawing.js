// The figure of one step as plain data for Plotly: what visual/figures/tree_figure.py makes on a server. Labels are escaped,
// since Plotly reads them as a kind of HTML.

import { escaped, general, letters, rounded, shortened } from "./python_text.js";

const EMPTY = " "; // a label of no characters at all is taken out of the page, and no later step's label comes in its place

export function treeDrawing(layout, look) {
  const marked = {
    type: "scatter", name: "marked", uid: "marked", x: [null], y: [null], mode: "markers", hoverinfo: "skip",
    marker: { color: "rgba(240,180,0,0.42)", opacity: 1, line: { width: 0 } },
  };
  return { data: [marked, ...groups(layout, look).map(([verdict, nodes]) => points(layout, verdict, nodes, look))], layout: figureLayout(layout, look) };
}

// What changes in the figure when pruned guesses are switched on.
export function rowsWithPruned(layout, look) {
  const heights = layout.heightsWithPruned;
  const y = Object.fromEntries(groups(layout, look).map(([verdict, nodes]) => [verdict, nodes.map((node) => heights[node])]));
  const [shapes, edges] = edgesOf(layout, heights, false, look);
  return { y, shapes, edges, ...room(heights, look) };
}

// Fill of a node: a colour of the legend's scale, or a pale grey without an entropy.
function shade(entropy, ceiling, { shades, unknown }) {
  return entropy === null ? unknown : shades[Math.min(rounded((entropy / ceiling) * (shades.length - 1)), shades.length - 1)];
}

export const ceilingOf = ({ config }) => Math.max(2, Math.ceil(2 * config.entropy_threshold));

function groups({ verdicts, hidden }, { markers }) {
  const nodes = verdicts.map((_, node) => node).filter((node) => !hidden.has(node));
  return Object.keys(markers).map((verdict) => [verdict, nodes.filter((node) => verdicts[node] === verdict)]).filter(([, own]) => own.length);
}

function figureLayout(layout, look) {
  const { heights, columns, step } = layout;
  const hidden = { visible: false, zeroline: false, showgrid: false };
  const { rows, range } = room(heights, look);
  const right = columns.at(-1) + look.MARGIN[1];
  const [shapes, edges] = edgesOf(layout, heights, true, look);
  const guesses = step.drafted === 1 ? "this guess" : `all ${step.drafted} guesses at once`;
  return {
    showlegend: false, hovermode: "closest", dragmode: false, autosize: true, margin: { l: 4, r: 4, t: 4, b: 4 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    meta: { rows, width: right + look.MARGIN[0], edges, checked: step.drafted ? `one large-model pass checked ${guesses}` : null },
    font: { size: 12, color: look.colours.quiet, family: "system-ui, sans-serif" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: look.colours.quiet, activecolor: look.colours.accepted },
    xaxis: { ...hidden, range: [-look.MARGIN[0], right] }, yaxis: { ...hidden, range }, shapes,
  };
}

// Rows to make room for and the range of the axis, labels on top included.
function room(heights, { SLOTS }) {
  const [low, high] = [heights.reduce((one, other) => Math.min(one, other)), heights.reduce((one, other) => Math.max(one, other))];
  const rows = Math.max(SLOTS, high - low + 2);
  const middle = (high + low) / 2;
  return { rows: rounded(rows, 1), range: [rounded(middle - rows / 2, 2), rounded(middle + rows / 2 + 0.3, 2)] };
}

// The edges by style, in the order of drawing, and the nodes that each style's edges lead to.
function edgesOf(layout, heights, stubs, look) {
  const { step, next, logProbs, hidden } = layout;
  const pruned = layout.pruned.filter((node) => !hidden.has(node));
  const taken = new Set(step.emittedNodes);
  const drafted = step.tokens.map((_, node) => node).slice(1).filter((node) => !taken.has(node));
  let floor = 0;
  const lines = look.widths.map(([limit, width]) => {
    const chosen = drafted.filter((node) => floor <= Math.exp(logProbs[node]) && Math.exp(logProbs[node]) < limit);
    floor = limit;
    return ["edges", chosen, { color: "rgba(139,144,150,0.55)", width }];
  });
  if (stubs) lines.push(["pruned-stubs", pruned, { color: "rgba(139,144,150,0.9)", width: 1.4 }]);
  else lines.push(["pruned-edges", pruned, { color: "rgba(139,144,150,0.7)", width: 1, dash: "1px,3px" }]);
  lines.push(["branch", step.emittedNodes, { color: look.colours.accepted, width: 5 }]);
  lines.push(["next-edge", step.bonusUnused ? [] : [next], { color: look.colours.target, width: 3, dash: "4px,4px" }]);
  const drawn = lines.filter(([, nodes]) => nodes.length);
  const pieces = stubs ? stubsOf(layout, heights, look) : new Map();
  const path = (nodes) => nodes.map((node) => pieces.get(node) ?? edge(layout, heights, node)).join(" ");
  return [drawn.map(([name, nodes, line]) => ({ type: "path", name, layer: "below", line, path: path(nodes) })), drawn.map(([, nodes]) => nodes)];
}

// A short piece of a path for each pruned guess: those of one parent fan out below it.
function stubsOf({ pruned, parents, columns, depths }, heights, { STUB, STUB_ANGLES: [low, high], ROW_PIXELS }) {
  const families = new Map();
  for (const node of pruned) {
    if (!families.has(parents[node])) families.set(parents[node], []);
    families.get(parents[node]).push(node);
  }
  const pieces = new Map();
  for (const [parent, family] of families) {
    const [x, y] = [columns[depths[parent]], heights[parent]];
    family.forEach((node, place) => {
      const angle = ((low + ((high - low) * (place + 0.5)) / family.length) * Math.PI) / 180;
      const end = [rounded(x + STUB * Math.cos(angle), 1), rounded(y - (STUB * Math.sin(angle)) / ROW_PIXELS, 3)];
      pieces.set(node, `M${x},${y}L${general(end[0])},${general(end[1])}`);
    });
  }
  return pieces;
}

// The edge from the parent to `node`, level at both ends.
function edge({ parents, depths, columns }, heights, node) {
  const [start, end] = [columns[depths[node] - 1], columns[depths[node]]];
  const [low, high] = [heights[parents[node]], heights[node]];
  if (low === high) return `M${start},${low}L${end},${low}`;
  const middle = rounded((start + end) / 2);
  return `M${start},${low}C${middle},${low} ${middle},${high} ${end},${high}`;
}

function points(layout, verdict, nodes, look) {
  const pruned = verdict === "pruned";
  const heights = pruned ? layout.heightsWithPruned : layout.heights;
  const labels = nodes.map((node) => label(layout, node, look));
  const fixed = { next: look.colours.target, pruned: look.colours.quiet }[verdict];
  return {
    type: "scatter", name: verdict, uid: verdict, mode: labels.some(Boolean) ? "markers+text" : "markers", hoverinfo: "none",
    cliponaxis: false, visible: !pruned, customdata: nodes, text: labels.map((one) => one || EMPTY),
    x: nodes.map((node) => layout.columns[layout.depths[node]]), y: nodes.map((node) => heights[node]),
    textposition: "top center", textfont: look.fonts[verdict],
    marker: { ...look.markers[verdict], opacity: 1, color: fixed ?? nodes.map((node) => shade(layout.entropies[node], ceilingOf(layout.trace), look)) },
  };
}

function label({ labels, verdicts }, node, { PRUNED_CHARACTERS: most }) {
  const short = verdicts[node] === "pruned" && letters(labels[node]).length > most;
  return escaped(short ? shortened(labels[node], most) : labels[node]);
}
