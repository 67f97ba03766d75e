// Layout of one step: a column per depth in pixels, a row per branch in slots, as visual/figures/step_layout.py has it.
// Ids are those of the tree; the target's own next token is one more, and pruned guesses come after it.

import { childrenOf } from "./trace_model.js";
import { isWordLetter, letters, printable, rounded, shortened, stripped } from "./python_text.js";

const VISIBLE = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
export const END_MARK = "■ end";

// A token as a short label: trimmed, whitespace made visible, the end of the answer named.
export function tokenLabel(trace, token, most = 24) {
  if (trace.ends.has(token)) return END_MARK;
  const text = trace.texts[token];
  const start = letters(stripped(text)).slice(0, most + 1);
  const shown = start.length ? start.map((one) => (printable(one) ? one : (VISIBLE[one] ?? "\ufffd")))
    : letters(text).slice(0, most + 1).map((one) => VISIBLE[one] ?? `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
  return shortened(shown.join("") || "∅", most);
}

// One code per node: why it stands or falls.
export function reasonsOf(step, sampled) {
  const taken = new Set(step.emittedNodes);
  const judged = new Set(step.path.slice(0, step.emitted.length));
  const behind = new Set(step.path.slice(step.emitted.length));
  const codes = ["root"];
  for (let node = 1; node < step.tokens.length; node++) {
    const parent = step.parents[node];
    if (taken.has(node)) codes.push("accepted");
    else if (judged.has(parent)) codes.push(sampled ? "chance-against" : "another-wanted");
    else codes.push(behind.has(parent) || codes[parent] === "after-end" ? "after-end" : "parent-rejected");
  }
  return codes;
}

const DRAWN = { root: "root", accepted: "accepted", "parent-rejected": "unreached", "after-end": "unreached" };

export function layoutOf(trace, step, sizes) {
  const next = step.tokens.length;
  const parents = [...step.parents, step.path.at(-1), ...step.pruned.map(({ parent }) => parent)];
  const depths = [...step.depths];
  for (const parent of parents.slice(next)) depths.push(depths[parent] + 1);
  const tokens = [...step.tokens, step.bonus, ...step.pruned.map(({ token }) => token)];
  const logProbs = [...step.log_probs, 0, ...step.pruned.map(({ log_prob: one }) => one)];
  const verdicts = [...reasonsOf(step, false).map((code) => DRAWN[code] ?? "rejected"), "next", ...step.pruned.map(() => "pruned")];
  const ended = [];
  step.tokens.forEach((token, node) => ended.push(trace.ends.has(token) || (node > 0 && ended[step.parents[node]])));
  const pruned = step.pruned.map((_, place) => next + 1 + place);
  const hidden = new Set(pruned.filter((node) => ended[parents[node]]));
  if (step.bonusUnused) hidden.add(next);
  const layout = { trace, step, next, parents, depths, tokens, logProbs, verdicts, ended, pruned, hidden };
  layout.entropies = step.entropies.map((entropy, node) => (ended[node] ? null : entropy));
  layout.heights = heightsOf(layout, next + 1);
  layout.heightsWithPruned = heightsOf(layout, parents.length);
  layout.rows = extent(layout.heights) + 1;
  const folds = foldsOf(layout, sizes);
  layout.labels = labelsOf(layout, folds, sizes);
  layout.columns = columnsOf(layout, folds, sizes);
  return layout;
}

const extent = (numbers) => numbers.reduce((one, other) => Math.max(one, other)) - numbers.reduce((one, other) => Math.min(one, other));

// --- rows -----------------------------------------------------------------------------------------------------------

// The emitted branch runs straight through; other subtrees are moved above or below as whole blocks, just far enough.
function heightsOf({ step, next, parents, logProbs }, count) {
  const emitted = new Set([...step.path, next]);
  const families = childrenOf(parents.slice(0, count)).map((family) =>
    family.sort((one, other) => emitted.has(other) - emitted.has(one) || logProbs[other] - logProbs[one]));
  const depths = [0];
  for (let node = 1; node < count; node++) depths.push(depths[parents[node]] + 1);
  const blocks = [];
  for (let node = count - 1; node >= 0; node--) blocks[node] = assembled(families[node], depths[node], blocks); // children first
  const heights = [0];
  for (let node = 0; node < count; node++) for (const [child, offset] of blocks[node].offsets) heights[child] = heights[node] + offset;
  return heights;
}

function assembled(family, depth, blocks) {
  const room = new Map(); // what a block takes at each depth: its lowest and its highest row
  const offsets = [];
  for (const child of family) {
    const block = blocks[child].room;
    let [up, down] = [null, null];
    for (const [at, [low, high]] of block) {
      const taken = room.get(at);
      if (!taken) continue;
      up = Math.max(up ?? -Infinity, taken[1] - low + 1);
      down = Math.min(down ?? Infinity, taken[0] - high - 1);
    }
    const offset = (up ?? 0) <= -(down ?? 0) ? (up ?? 0) : down;
    offsets.push([child, offset]);
    for (const [at, [low, high]] of block) {
      const taken = room.get(at) ?? [low + offset, high + offset];
      room.set(at, [Math.min(taken[0], low + offset), Math.max(taken[1], high + offset)]);
    }
  }
  room.set(depth, [0, 0]);
  return { room, offsets };
}

// --- labels and columns ---------------------------------------------------------------------------------------------

function labelsOf(layout, folds, { LABEL_CHARACTERS: most, CROWDED: crowded }) {
  const { trace, next, parents, depths, tokens, verdicts, hidden, rows } = layout;
  const labels = tokens.map((token, node) => {
    if (hidden.has(node)) return "";
    const goesOn = parents[node] >= 0 && continuesWord(trace.texts[tokens[parents[node]]], trace.texts[token]);
    return goesOn ? `-${tokenLabel(trace, token, most - 1)}` : tokenLabel(trace, token, most);
  });
  const folded = new Map(folds.flatMap((fold) => fold.map((depth) => [depth, fold])));
  for (let node = 0; node < next; node++) {
    const fold = folded.get(depths[node]);
    if (fold) labels[node] = depths[node] === fold[Math.floor(fold.length / 2)] ? `+${fold.length}` : "";
  }
  return rows > crowded ? labels.map((label, node) => (verdicts[node] === "unreached" ? "" : label)) : labels;
}

function continuesWord(before, text) {
  const [last, first] = [letters(before).at(-1), letters(text)[0]];
  return last !== undefined && first !== undefined && isWordLetter(last) && isWordLetter(first);
}

// Far enough apart for all labels, no farther than there is room.
function columnsOf(layout, folds, sizes) {
  const wide = spaced(layout, folds, sizes.COLUMN, sizes);
  const narrow = spaced(layout, folds, sizes.NARROW, sizes);
  const width = sizes.COLUMN * (Math.min(layout.trace.config.depth, sizes.SHOWN_DEPTHS) + 1);
  const excess = wide.at(-1) - narrow.at(-1);
  const share = excess <= 0 ? 1 : Math.min(1, Math.max(0, (width - narrow.at(-1)) / excess));
  return narrow.map((place, depth) => rounded(place + share * (wide[depth] - place)));
}

function spaced({ next, depths, heights, labels }, folds, apart, { FOLDED, CHARACTER, BETWEEN }) {
  const folded = new Set(folds.flat());
  const labelled = Array.from({ length: extent(depths) + 1 }, () => []);
  for (let node = 0; node <= next; node++) if (labels[node]) labelled[depths[node]].push(node);
  const columns = [0];
  const room = new Map(); // where the last label of a row ends
  labelled.forEach((here, depth) => {
    if (depth) columns.push(columns.at(-1) + (folded.has(depth) || folded.has(depth - 1) ? FOLDED : apart));
    const half = (node) => (letters(labels[node]).length * CHARACTER) / 2;
    const needed = here.filter((node) => room.has(heights[node])).map((node) => room.get(heights[node]) + BETWEEN + half(node));
    const column = Math.max(columns.at(-1), ...needed, 0);
    columns[depth] = column;
    for (const node of here) room.set(heights[node], column + half(node));
  });
  return columns;
}

// Runs of depths in which nothing branches and no verdict changes; none while everything fits.
function foldsOf({ next, parents, depths, verdicts }, { SHOWN_DEPTHS, SHORTEST_FOLD }) {
  const deepest = extent(depths);
  if (deepest <= SHOWN_DEPTHS + 1) return [];
  const children = childrenOf(parents.slice(0, next + 1));
  const busy = new Set();
  for (let node = 0; node <= next; node++) if (!plain(node, children, parents, verdicts)) busy.add(depths[node]);
  const runs = [];
  for (let depth = 0; depth < deepest; depth++) {
    if (busy.has(depth)) continue;
    if (runs.at(-1)?.at(-1) === depth - 1) runs.at(-1).push(depth);
    else runs.push([depth]);
  }
  return runs.filter((run) => run.length >= SHORTEST_FOLD);
}

function plain(node, children, parents, verdicts) {
  if (node === 0 || children[node].length !== 1 || children[parents[node]].length !== 1) return false;
  return verdicts[parents[node]] === verdicts[node] && verdicts[node] === verdicts[children[node][0]];
}
