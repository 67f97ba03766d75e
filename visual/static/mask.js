// The attention mask of a tree pass, [nodes, context and nodes]: a row per node in the order of the cache, filled where it
// attends. A node sees the context, the nodes above it and itself, so every branch is read as if it stood alone.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 380; // units of the drawing, which scales to its slot
const [MARGIN, LABEL, CONTEXT] = [34, 62, 46]; // of positions, of tokens, of the one column for the context
const WIDEST = 17; // of a cell
const READABLE = 8.5; // cells from here on have their tokens beside them
const [HEAD, TAIL] = [54, 30]; // above the rows, and right of the columns: names of columns are slanted
const LETTERS = 9;
const NAMED = 5; // nodes that a sentence names

// `look(node)` is called as a row is pointed at (undefined: none any more), `choose(node)` as it is clicked.
export function createMask(slot, { look, choose }) {
  const [fold, sentence, table] = [document.createElement("details"), styled("p", "", "mask-said"), document.createElement("details")];
  const picture = element("svg", { role: "img" });
  let step = null;
  let cached = 0;
  let cell = 0;
  let pointed; // the row under the pointer

  fold.className = "mask-fold";
  sentence.setAttribute("aria-live", "polite");
  table.className = "table";
  table.append(styled("summary", "The mask as a table"), styled("div", "", "table-scroll"));
  Object.assign(table.lastChild, { tabIndex: 0, role: "group", ariaLabel: "Table of the attention mask" });
  table.addEventListener("toggle", fillTable);
  fold.append(styled("summary", "What each node sees: the attention mask"), picture, sentence, table);
  slot.replaceChildren(fold);
  picture.addEventListener("pointermove", (event) => point(rowAt(event)));
  picture.addEventListener("pointerleave", () => point(undefined));
  picture.addEventListener("click", (event) => rowAt(event) !== undefined && choose(rowAt(event)));

  const left = () => MARGIN + LABEL + CONTEXT;
  const above = (node) => chain(step, node).slice(1).reverse(); // from the root down to the parent

  // `step` is as of step_phases.js; before its pass the cache holds `columns` columns.
  function lay(next, columns) {
    [step, cached] = [next, columns];
    const { length } = step.nodes;
    cell = Math.min(WIDEST, (WIDTH - left() - TAIL) / length);
    const height = HEAD + cell * length + 2;
    put(picture, { viewBox: `0 0 ${WIDTH} ${height}`, "aria-label": `Attention mask: ${length} nodes, each sees ${cached} columns of context, the nodes above it and itself` });
    const levels = Array.from({ length: step.levels + 1 }, (_, level) => layLevel(level));
    picture.replaceChildren(element("rect", { class: "mask-row" }), element("path", { class: "mask-columns" }), ...heads(), ...levels);
    if (table.open) fillTable();
  }

  function heads() {
    const names = [write("position", 0, HEAD - 6, "start"), write("context", MARGIN + LABEL + CONTEXT / 2, HEAD - 18, "middle"),
      write(String(cached), MARGIN + LABEL + CONTEXT / 2, HEAD - 6, "middle")];
    return [...names, element("rect", { class: "mask-frame", x: MARGIN + LABEL, y: HEAD, width: left() - MARGIN - LABEL + cell * step.nodes.length, height: cell * step.nodes.length })];
  }

  // Rows and heads of columns of one depth, and their filled cells as one path.
  function layLevel(level) {
    const group = element("g", { "data-level": level });
    const rows = step.nodes.filter((node) => step.depth[node] === level);
    const seen = rows.flatMap((row) => chain(step, row).map((column) => square(row, column)));
    const context = rows.map((row) => `M${MARGIN + LABEL},${at(HEAD + row * cell)}h${CONTEXT}v${at(cell)}h-${CONTEXT}z`);
    group.append(element("path", { class: "mask-context", d: context.join("") }), element("path", { class: "mask-cells", d: seen.join("") }));
    if (cell < READABLE) return group;
    for (const row of rows) {
      const middle = HEAD + (row + 0.5) * cell + 3.5;
      const head = write(short(step.words[row]), left() + (row + 0.5) * cell + 3, HEAD - 5, "start");
      put(head, { transform: `rotate(-60 ${left() + (row + 0.5) * cell + 3} ${HEAD - 5})` });
      group.append(write(String(cached + level), MARGIN - 4, middle, "end"), write(short(step.words[row]), MARGIN + LABEL - 4, middle, "end"), head);
    }
    return group;
  }

  const at = (value) => Math.round(1000 * value) / 1000;
  const square = (row, column) => `M${at(left() + column * cell)},${at(HEAD + row * cell)}h${at(cell)}v${at(cell)}h-${at(cell)}z`;

  // Only nodes down to a depth are there yet.
  function reach(level) {
    for (const group of picture.querySelectorAll("[data-level]")) group.classList.toggle("ph-hidden", Number(group.dataset.level) > level);
  }

  // Lights a node's row and its columns, and says in words what it sees.
  function show(node) {
    sentence.textContent = said(node);
    const [row, columns] = [picture.querySelector(".mask-row"), picture.querySelector(".mask-columns")];
    const inside = step.nodes.includes(node);
    const tall = cell * step.nodes.length;
    put(row, { x: 0, y: inside ? HEAD + node * cell : 0, width: inside ? left() + tall : 0, height: inside ? Math.max(cell, 1) : 0 });
    put(columns, { d: inside ? chain(step, node).map((column) => `M${at(left() + column * cell)},${HEAD}h${at(cell)}v${at(tall)}h-${at(cell)}z`).join("") : "" });
  }

  function said(node) {
    const word = `“${step.words[node]}”`;
    if (step.verdict[node] === "n") return `${word} is not in the pass: it comes out of it.`;
    if (!step.nodes.includes(node)) return `${word} was cut before the pass, so it has no row.`;
    const before = above(node);
    const sees = `${word} at position ${cached + step.depth[node]} sees the context${before.length ? `, ${listed(before)}` : ""} and itself`;
    const siblings = step.nodes.filter((other) => other && other !== node && step.parent[other] === step.parent[node]);
    if (siblings.length) return `${sees}; it does not see its sibling${siblings.length > 1 ? "s" : ""} ${listed(siblings)}, though ${siblings.length > 1 ? "they have" : "it has"} the same position.`;
    return before.length ? `${sees}, and no other branch.` : `${sees}.`;
  }

  function listed(nodes) {
    const words = nodes.slice(-NAMED).map((node) => `“${step.words[node]}”`);
    return nodes.length > NAMED ? `${nodes.length - NAMED} more, ${words.join(", ")}` : words.join(", ");
  }

  function point(row) {
    if (row !== pointed) look(row);
    pointed = row;
  }

  function rowAt({ clientY }) {
    if (!step) return undefined;
    const box = picture.getBoundingClientRect();
    const row = Math.floor((((clientY - box.top) / box.width) * WIDTH - HEAD) / cell);
    return step.nodes[row];
  }

  function fillTable() {
    if (!step || !table.open) return;
    const made = document.createElement("table");
    const head = made.createTHead().insertRow();
    for (const name of ["Token", "Position", "Sees, besides the context and itself"]) head.append(Object.assign(styled("th", name), { scope: "col" }));
    const body = made.createTBody();
    for (const node of step.nodes) {
      const row = body.insertRow();
      for (const text of [step.words[node], String(cached + step.depth[node]), above(node).map((other) => step.words[other]).join(" ")]) row.append(styled("td", text));
    }
    table.querySelector(".table-scroll").replaceChildren(made);
  }

  return { lay, reach, show, open: (open) => (fold.open = open) };
}

// A node and all above it, upwards.
function chain({ parent }, node) {
  const nodes = [];
  for (let id = node; id >= 0; id = parent[id]) nodes.push(id);
  return nodes;
}

const short = (word) => (word.length > LETTERS ? `${word.slice(0, LETTERS - 1)}…` : word);

function write(text, x, y, anchor) {
  return Object.assign(element("text", { x, y, "text-anchor": anchor }), { textContent: text });
}

function element(name, attributes) {
  return put(document.createElementNS(SVG, name), attributes);
}

function put(made, attributes) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function styled(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}
