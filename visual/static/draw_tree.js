// An editor in which a tree's shape is clicked together, beside the field that holds it: the parents of all guesses with
// commas between them, node 0 is the root. A tree is a list of parents here; no guess comes before its parent.

const GAP = { x: 58, y: 30 }; // pixels from a level to the next, and between two leaves
const NODE = 26; // pixels
const SVG = "http://www.w3.org/2000/svg";
const READY = [
  ["Chain of 6", [0, 1, 2, 3, 4, 5]],
  ["Two chains", [0, 0, 1, 2, 3, 4, 5, 6]],
  ["Bush 3 × 2", [0, 0, 0, 1, 1, 2, 2, 3, 3]],
  ["Forks in doubt", [0, 1, 2, 2, 3, 4, 5, 5, 7, 9]], // as this paper's rule grows: one guess where the draft is sure
];
const RANKS = ["best", "second", "third", "fourth", "fifth"];

export function createTreeEditor({ most, change, run }) {
  const board = make("div", { class: "tree-board", role: "group", "aria-label": "Your tree: arrows move, plus adds a guess, Delete removes one" });
  const count = make("p", { class: "tree-count", role: "status" });
  const reason = make("p", { class: "tree-reason", role: "alert" });
  const hint = make("p", { class: "tree-hint" }, "A circle is a guess. Its number: 1 the draft's best there, 2 its second best.");
  const start = make("button", { type: "button", class: "tree-run" }, "Run this tree");
  const ready = READY.map(([title, parents]) => {
    const button = make("button", { type: "button" }, title);
    button.addEventListener("click", () => choose(title, parents));
    return button;
  });
  const element = make("div", { class: "tree-editor" }, make("div", { class: "tree-ready", role: "group", "aria-label": "Ready shapes" }, ...ready),
    make("div", { class: "tree-scroll" }, board), hint, count, reason, start);
  let tree = null; // the parents; null where the field holds no tree
  let limits = { guesses: most.guesses, levels: Infinity };
  let current = 0; // the node that the keyboard is at
  let shown = "";
  start.addEventListener("click", run);
  board.addEventListener("keydown", onKey);
  return { element, show };

  function show(text, { depth, nodes }) {
    const state = JSON.stringify([text, depth, nodes]);
    if (state === shown) return;
    shown = state;
    tree = parsed(String(text ?? ""), most);
    limits = { guesses: Math.min(most.guesses, nodes ?? most.guesses), levels: depth ?? Infinity };
    current = Math.min(current, tree?.length ?? 0);
    refuse("");
    draw();
  }

  function draw() {
    start.disabled = !tree;
    ready.forEach((button, place) => button.setAttribute("aria-pressed", String(same(tree, READY[place][1]))));
    const focused = board.contains(document.activeElement);
    board.replaceChildren();
    board.hidden = !tree;
    count.textContent = tree ? counted(tree, limits) : "The list above is no tree. Correct it, or begin with one of these shapes.";
    if (!tree) return;
    const { places, width, height } = layout(tree);
    board.style.width = `${width}px`;
    board.style.height = `${height}px`;
    const used = kept(tree, limits);
    board.append(edges(tree, places, width, height), ...places.flatMap((place, node) => nodeButtons(node, place, used.has(node))));
    if (focused) nodeAt(current).focus();
  }

  function nodeButtons(node, { x, y }, used) {
    const at = (button, left, act) => {
      button.style.left = `${left}px`;
      button.style.top = `${y - NODE / 2}px`;
      button.addEventListener("click", act);
      return button;
    };
    const circle = make("button", { type: "button", class: used ? "tree-node" : "tree-node left-out", "data-node": node, tabindex: node === current ? 0 : -1,
      "aria-label": named(tree, node) + (used ? "" : ", beyond the limits") }, node ? String(rank(tree, node) + 1) : "•");
    circle.addEventListener("focus", () => reach(node));
    const buttons = [at(circle, x, () => circle.focus())];
    const add = make("button", { type: "button", class: "tree-add", tabindex: -1, "aria-label": `Add a guess below ${spoken(node)}` }, "+");
    buttons.push(at(add, x + NODE, () => grow(node)));
    if (node && !tree.includes(node)) {
      const remove = make("button", { type: "button", class: "tree-remove", tabindex: -1, "aria-label": `Remove ${spoken(node)}` }, "×");
      buttons.push(at(remove, x + NODE + 24, () => prune(node)));
    }
    return buttons;
  }

  function nodeAt(node) {
    return board.querySelector(`[data-node="${node}"]`);
  }

  function reach(node) {
    nodeAt(current)?.setAttribute("tabindex", -1);
    current = node;
    nodeAt(node).setAttribute("tabindex", 0);
  }

  function refuse(why) {
    reason.textContent = why;
  }

  function set(parents, node) {
    current = node;
    change(parents.join(", ")); // which shows it
  }

  function grow(node) {
    const level = levels(tree)[node] + 1;
    const children = tree.filter((parent) => parent === node).length;
    if (tree.length >= limits.guesses) return refuse(`No more: at most ${limits.guesses} guesses are checked in one pass.`);
    if (level > limits.levels) return refuse(`No deeper: the draft looks at most ${limits.levels} levels ahead.`);
    if (children >= most.children) return refuse(`No more here: one guess has at most ${most.children} below it.`);
    set([...tree, node], node);
  }

  function prune(node) {
    if (node === 0) return refuse("The root stays: it is the last token that is settled.");
    if (tree.includes(node)) return refuse("Only a guess with nothing below it can be removed.");
    if (tree.length === 1) return refuse("One guess stays: a tree has at least one.");
    const parent = tree[node - 1];
    set(tree.filter((_, place) => place !== node - 1).map((one) => (one > node ? one - 1 : one)), parent);
  }

  function choose(title, parents) {
    const deepest = Math.max(...levels(parents));
    if (parents.length > limits.guesses) return refuse(`${title} has ${parents.length} guesses: at most ${limits.guesses} are checked in one pass.`);
    if (deepest > limits.levels) return refuse(`${title} has ${deepest} levels: the draft looks at most ${limits.levels} ahead.`);
    set(parents, 0);
  }

  function onKey(event) {
    if (!event.target.matches(".tree-node") || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (["+", "="].includes(key)) grow(current);
    else if (["-", "−", "Delete", "Backspace"].includes(key)) prune(current);
    else {
      const next = neighbour(tree, current, key);
      if (next === undefined) return;
      nodeAt(next)?.focus();
    }
    event.preventDefault();
  }
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const spoken = (node) => (node ? `guess ${node}` : "the root");

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The list of a field as parents, or null: the server says in words what is wrong with it.
function parsed(text, most) {
  const parts = text.split(",").map((part) => part.trim());
  if (parts.length > most.guesses || !parts.every((part, node) => /^\d{1,3}$/.test(part) && Number(part) <= node)) return null;
  const parents = parts.map(Number);
  return parents.every((parent) => parents.filter((other) => other === parent).length <= most.children) ? parents : null;
}

// The level of every node, the root first.
function levels(parents) {
  const found = [0];
  for (const parent of parents) found.push(found[parent] + 1);
  return found;
}

function rank(parents, node) {
  return parents.slice(0, node - 1).filter((parent) => parent === parents[node - 1]).length;
}

function named(parents, node) {
  if (node === 0) return "The root, the last token that is settled";
  const place = rank(parents, node);
  return `Guess ${node}, the draft's ${RANKS[place] ?? `number ${place + 1}`} below ${spoken(parents[node - 1])}, level ${levels(parents)[node]}`;
}

// The nodes that a run grows: as many levels and, level by level, as many guesses as its limits allow.
function kept(parents, limits) {
  const deep = levels(parents);
  const order = [0];
  for (let place = 0; place < order.length; place++) parents.forEach((parent, index) => parent === order[place] && order.push(index + 1));
  return new Set(order.filter((node) => deep[node] <= limits.levels).slice(0, limits.guesses + 1));
}

function counted(parents, limits) {
  const used = kept(parents, limits);
  const deep = levels(parents);
  const reached = Math.max(...[...used].map((node) => deep[node]));
  const guesses = used.size === 2 ? "1 guess" : `${used.size - 1} guesses`;
  const said = `${guesses}, ${reached} level${reached === 1 ? "" : "s"}, up to ${reached + 1} tokens a pass`;
  return used.size <= parents.length ? `${said}; left out, beyond the limits: ${parents.length + 1 - used.size}` : said;
}

function layout(parents) {
  const deep = levels(parents);
  const places = deep.map((level) => ({ x: level * GAP.x, y: 0 }));
  let leaves = 0;
  const settle = (node) => {
    const children = parents.flatMap((parent, index) => (parent === node ? [index + 1] : []));
    children.forEach(settle);
    places[node].y = children.length ? (places[children[0]].y + places[children.at(-1)].y) / 2 : GAP.y * (leaves++ + 0.5);
  };
  settle(0);
  return { places, width: Math.max(...deep) * GAP.x + NODE + 48, height: leaves * GAP.y };
}

function edges(parents, places, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width, height, "aria-hidden": "true" })) svg.setAttribute(name, value);
  parents.forEach((parent, index) => {
    const [from, to] = [places[parent], places[index + 1]];
    const line = document.createElementNS(SVG, "path");
    const [left, middle] = [from.x + NODE / 2, from.x + NODE + 24];
    line.setAttribute("d", `M${left} ${from.y}H${middle}L${to.x} ${to.y}`);
    svg.append(line);
  });
  return svg;
}

function neighbour(parents, node, key) {
  const deep = levels(parents);
  const { places } = layout(parents);
  const row = deep.flatMap((level, other) => (level === deep[node] ? [other] : [])).sort((one, other) => places[one].y - places[other].y);
  const moves = {
    ArrowRight: () => parents.indexOf(node) + 1 || node,
    ArrowLeft: () => (node ? parents[node - 1] : 0),
    ArrowDown: () => row[row.indexOf(node) + 1] ?? node,
    ArrowUp: () => row[row.indexOf(node) - 1] ?? node,
    Home: () => 0,
  };
  return moves[key]?.();
}
