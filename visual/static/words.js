// What lies below and above the tree's figure: the block of a pass, words, marks, numbers, dashed circles.

function drawUnder(field, tree, view, at, width, height) {
  const parts = [];
  const nodes = tree.parent.map((_, node) => node).filter((node) => node && at.shown[node] && tree.kind[node] !== "n");
  if (["pass", "words"].includes(view.name) && nodes.length) parts.push(block(at, nodes, width, height));
  if (view.name === "trunk") {
    for (const node of nodes) {
      const box = at.upright
        ? [at.x[node] - 24, at.y[node] - 17, 150, 34]
        : [at.x[node] - 0.46 * at.column, at.y[node] - 50, 0.92 * at.column, 78];
      parts.push(rectangle(box, 10, "slab-small"));
    }
  }
  if (view.halo !== undefined)
    parts.push(svg("circle", { cx: at.x[view.halo], cy: at.y[view.halo], r: 2 * at.radius, class: "halo" }));
  field.under.replaceChildren(...parts);
}

function rectangle([x, y, width, height], radius, name) {
  return svg("rect", { x, y, width, height, rx: radius, class: name });
}

// One pass of the large model, around all guesses that it reads.
function block(at, nodes, width, height) {
  const [xs, ys] = [nodes.map((node) => at.x[node]), nodes.map((node) => at.y[node])];
  if (at.upright)
    return rectangle([0, Math.min(...ys) - 17, width, Math.max(...ys) - Math.min(...ys) + 36], 12, "slab");
  const [left, right] = [Math.min(...xs) - 40, Math.min(width, Math.max(...xs) + 52)];
  return rectangle([left, 4, right - left, height - 8], 14, "slab");
}

function drawWords(field, tree, view, at, look, width, height) {
  const parts = [];
  tree.parent.forEach((_, node) => {
    if (!at.shown[node]) return;
    const { kind } = look[node];
    if (kind === "u")
      parts.push(svg("circle", { cx: at.x[node], cy: at.y[node], r: Math.max(3, at.radius - 2.5), class: "dashed" }));
    if (kind === "r") parts.push(cross(at, node));
    parts.push(...(at.upright ? uprightWord : levelWord)(tree, view, at, kind, node));
  });
  if (view.ask !== undefined) parts.push(...question(tree, view, at));
  if (view.note) parts.push(note(view, at, height));
  field.over.replaceChildren(...parts);
  field.at = at;
}

function cross(at, node) {
  const arm = at.radius - 5.5;
  const [x, y] = [at.x[node], at.y[node]];
  return svg("path", {
    d: `M${x - arm} ${y - arm}L${x + arm} ${y + arm}M${x + arm} ${y - arm}L${x - arm} ${y + arm}`,
    class: "cross",
  });
}

const CLASSES = { o: "strong", n: "strong large", a: "strong", r: "refused", u: "pale", g: "" };

// A text of the field; `size` null: that of its class.
function write(x, y, text, name, { anchor = "start", size = null } = {}) {
  return svg("text", { x, y, "text-anchor": anchor, class: name, "font-size": size }, text);
}

// A word, or a punctuation mark as a key.
function label(x, y, text, isMark, anchor, name, size) {
  if (!isMark) return [write(x, y, text, `word ${name}`, { anchor, size })];
  const middle = anchor === "start" ? x + 11 : x;
  return [
    svg("rect", { x: middle - 11, y: y - 17, width: 22, height: 22, rx: 5, class: `cap ${name}` }),
    write(middle, y - 1, text, `word strong ${name}`, { anchor: "middle", size: Math.min(size, 18) }),
  ];
}

function levelWord(tree, view, at, kind, node) {
  const roomy = at.row >= 26 || "oan".includes(kind);
  if (!roomy) return [];
  const long = node === 0 && tree.text[0].length > LONG;
  const folded = view.fold && kind === "r";
  const name = CLASSES[kind];
  const size = kind === "u" ? Math.min(15, at.size) : at.row < 40 ? Math.min(13, at.size) : at.size;
  const [x, y] = folded
    ? [at.x[node] - 17, at.y[node] + 6]
    : [long ? at.x[0] + 20 : at.x[node], at.y[node] - at.radius - 9.5];
  const parts = label(x, y, tree.text[node], tree.mark[node], folded || long ? "end" : "middle", name, size);
  if (view.probs?.includes(node)) parts.push(number(tree, view, at, node));
  if (view.name === "words" && node && tree.wish[node] !== null && at.row >= 40)
    parts.push(...wish(tree, view, at, node));
  return parts;
}

function number(tree, view, at, node) {
  const family = view.probs.length > 1;
  const [x, anchor] = tree.first[node] && family ? [at.x[node] - 13, "start"] : [at.x[node], "middle"];
  const words = tree.first[node] && family ? `${tree.small[node]}, its first choice` : tree.small[node];
  return write(x, at.y[node] + at.radius + 18.5, words, "number", { anchor });
}

// The large model's own word below a guess: equal, or another; without a sign after a refused guess.
function wish(tree, view, at, node) {
  const lit = view.lit?.includes(node);
  const tight = at.column < 76;
  const vain = refusedBefore(tree, node);
  const sign = vain || (tree.same[node] && tight) ? "" : tree.same[node] ? "= " : "≠ ";
  const wide = textWidth(sign + tree.wish[node], 15) > at.column;
  const size = wide ? 13 : lit ? (tight ? 15 : 18) : Math.min(15, at.size);
  const y = at.y[node] + at.radius + 19.5;
  const name = lit ? "wish lit" : vain ? "pale" : "wish";
  const text = write(at.x[node], y, "", name, { anchor: "middle", size });
  text.append(svg("tspan", { class: tree.same[node] ? "" : "refused" }, sign), svg("tspan", {}, tree.wish[node]));
  if (!lit) return [text];
  const half = textWidth(sign + tree.wish[node], size) / 2 + 2;
  return [text, svg("path", { d: `M${at.x[node] - half} ${y + 6}H${at.x[node] + half}`, class: "lit-line" })];
}

// Whether a guess follows one that the large model's own word refuses.
function refusedBefore(tree, node) {
  const above = tree.parent[node];
  return above > 0 && (!tree.same[above] || refusedBefore(tree, above));
}

function uprightWord(tree, view, at, kind, node) {
  const asked = view.name === "words" && node && tree.wish[node] !== null;
  const two = asked && !tree.same[node] && !refusedBefore(tree, node);
  const folded = view.fold && kind === "r";
  const lit = view.name === "words" && view.lit?.includes(node);
  const name = lit ? "strong large" : CLASSES[kind];
  const x = at.x[node] + (folded ? -17 : view.halo === node ? 28 : 17);
  const [y, anchor] = [at.y[node] + (two ? 2 : 6), folded ? "end" : "start"];
  const parts = label(x, y, tree.text[node], tree.mark[node], anchor, name, at.size);
  const after = x + (tree.mark[node] ? 30 : textWidth(tree.text[node], at.size) + 7);
  if (view.probs?.includes(node)) parts.push(write(after, at.y[node] + 5, tree.small[node], "number"));
  if (two) parts.push(write(x, at.y[node] + 18, `≠ ${tree.wish[node]}`, "wish", { size: 13 }));
  return parts;
}

// Where a lesson asks: the large model's word, not known yet.
function question(tree, view, at) {
  const { ask } = view;
  const step = at.upright ? [at.row || 80, at.column] : [Math.max(at.column, 60), 84];
  const [x, y] = [at.x[ask] + step[0], at.y[ask] + step[1]];
  const path = at.upright
    ? `M${at.x[ask]} ${at.y[ask]}C${at.x[ask]} ${y} ${x} ${at.y[ask]} ${x} ${y}`
    : `M${at.x[ask] + at.radius} ${at.y[ask] + 3}C${at.x[ask] + step[0] * 0.6} ${at.y[ask]} ${at.x[ask] + step[0] * 0.42} ${y} ${x} ${y}`;
  const diamond = `M${x} ${y - 15}L${x + 15} ${y}L${x} ${y + 15}L${x - 15} ${y}Z`;
  return [
    svg("path", { d: path, class: "own-edge" }),
    svg("path", { d: diamond, class: "asked-diamond" }),
    write(x, y + 6, "?", "word strong large", { anchor: "middle", size: 18 }),
    write(x + 25, y + 5, "the large model’s word", "number muted"),
  ];
}

function note(view, at, height) {
  if (at.upright) return svg("g");
  if (view.name === "trunk")
    return write(at.x[1] - 0.46 * at.column, at.y[1] + 58, view.note, "word muted", { size: 15 });
  const end = Math.max(...at.x.filter((_, node) => at.shown[node])) + 40; // inside the block
  return svg(
    "g",
    {},
    write(end, height - 36, "one pass", "word strong large", { anchor: "end", size: 15 }),
    write(end, height - 18, view.note, "number muted", { anchor: "end" }),
  );
}

// The large model alone: its last words, one pass each, and the one that comes.
function drawChain(field, { items, ask }) {
  const [width, height] = [field.width, field.height];
  const list = [...items, ["?", ask]];
  const upright = narrow();
  const gap = upright ? 6 : 10;
  const side = ((upright ? height : width) - gap * (list.length - 1)) / list.length;
  const from = (number) => number * (side + gap);
  const box = (number) => (upright ? [0, from(number), width, side] : [from(number), 24, side, height - 48]);
  const points = list.map((_, number) =>
    upright ? [28, from(number) + side / 2] : [from(number) + side / 2, height / 2 + 18],
  );
  const { colours } = field;
  const last = list.length - 1;
  const line = {
    type: "path",
    layer: "below",
    line: { color: colours.edge, width: 3 },
    path: `M${points[0].join()}L${points[last].join()}`,
  };
  const dots = points.map(([x, y], number) => {
    const fill = number === last ? colours.paper : colours.large;
    return { x, y, symbol: "diamond", size: 20, fill, line: colours.large };
  });
  drawFigure(field, dots, [line]);
  field.under.replaceChildren(
    ...list.map((_, number) => rectangle(box(number), 14, number === last ? "slab-open" : "slab")),
  );
  field.over.replaceChildren(
    ...list.flatMap(([text, pass], number) => {
      const [x, y] = points[number];
      const size = textWidth(text, 18) > side - 8 && !upright ? 13 : 18;
      if (upright)
        return [
          write(52, y + 6, text, "word strong", { size }),
          write(width - 14, y + 5, pass, "number muted", { anchor: "end" }),
        ];
      return [
        write(x, y - 30, text, "word strong", { anchor: "middle", size }),
        write(x, height - 44, pass, "number muted", { anchor: "middle" }),
      ];
    }),
  );
  field.at = null;
}

// --- inside a pass: the attention mask, the KV cache, a recorded draw ------------------------------------

const CELL = 13;

// Every row is one guess, every column what it may see: its ancestors and itself, after the text so far. Both have the
// guess's number, since a word may be guessed on several branches.
function drawMask(field, tree, cached) {
  const [width, height] = [field.width, field.height];
  const nodes = ownColumns(tree);
  const named = nodes.map((node) => `${tree.text[node]} ${node}`);
  const names = Math.min(110, Math.max(...named.map((name) => textWidth(name, 13))) + 12);
  const text = 84; // pixels for the columns of the text so far
  const cell = Math.min(CELL, (height - 54) / nodes.length, (width - names - text) / nodes.length);
  const [left, top] = [Math.max(names, (width - text - cell * nodes.length) / 2), 44];
  const size = Math.min(13, cell - 1);
  const parts = [
    write(left + text, 18, `${cached} columns so far`, "number muted", { anchor: "end" }),
    write(left + text + 8, 18, "columns: guesses of this pass", "number muted"),
  ];
  nodes.forEach((node, row) => {
    const y = top + row * cell;
    const seen = new Set(ancestors(tree, node));
    const middle = left + text + 6 + (row + 0.5) * cell;
    if (cell >= 9)
      parts.push(
        write(left - 6, y + cell - 2, named[row], "word", { anchor: "end", size: size + 1 }),
        write(middle, top - 5, row % 2 ? "" : `${node}`, "word muted", { anchor: "middle", size }),
      );
    parts.push(rectangle([left, y + 0.5, text, cell - 1.5], 0, "sees text-so-far"));
    nodes.forEach((column) => {
      const x = left + text + 6 + column * cell;
      const name = seen.has(column) ? `sees${node === column ? " self" : ""}` : "blind";
      parts.push(rectangle([x, y + 0.5, cell - 1.5, cell - 1.5], 0, name));
    });
  });
  emptyField(field, parts);
}

function emptyField(field, words = []) {
  drawFigure(field, [], []);
  field.under.replaceChildren();
  field.over.replaceChildren(...words);
  field.at = null;
}

// Nodes that the pass has a column for: all but the large model's own word.
const ownColumns = (tree) => tree.parent.map((_, node) => node).filter((node) => tree.kind[node] !== "n");

function ancestors({ parent }, node) {
  const path = [];
  for (let at = node; at >= 0; at = parent[at]) path.push(at);
  return path;
}

// The columns of the pass in the cache: those of the accepted branch stay.
function drawCache(field, tree, cached) {
  const [width, height] = [field.width, field.height];
  const nodes = ownColumns(tree);
  const kept = new Set([0, ...tree.path]);
  const text = Math.min(130, width * 0.25);
  const cell = Math.min(26, (width - text - 24) / nodes.length);
  const y = height - 30;
  const parts = [
    rectangle([2, y, text, 22], 4, "cache-column text-so-far"),
    write(10, y + 15, `${cached} columns`, "number"),
  ];
  nodes.forEach((node, at) => {
    const x = text + 10 + at * cell;
    parts.push(rectangle([x, y, cell - 2, 22], 3, kept.has(node) ? "cache-column kept" : "cache-column dropped"));
  });
  field.over.append(...parts);
}

// A number that was drawn, on a bar from 0 to 1: below the line a guess is kept, or a word's share that it falls on.
function drawCoin(field, draw) {
  const [width, height] = [field.width, field.height];
  const [left, bar, y] = [24, width - 48, height - 34];
  const x = (share) => left + bar * share;
  const parts = [rectangle([left, y, bar, 16], 4, "coin-bar")];
  if (draw.keeps !== null) {
    parts.push(rectangle([left, y, bar * draw.keeps, 16], 4, "coin-keep"));
    parts.push(
      write(left + 8, y + 12, "kept", "number"),
      write(left + bar - 8, y + 12, "refused", "number", { anchor: "end" }),
    );
  }
  for (const [word, start, share] of draw.shares) {
    parts.push(rectangle([x(start), y, bar * share, 16], 2, word === draw.word ? "coin-keep" : "coin-share"));
    if (bar * share > textWidth(word, 13) + 8) parts.push(write(x(start) + 5, y + 12, word, "number"));
  }
  const at = x(draw.uniform);
  parts.push(
    svg("path", { d: `M${at} ${y - 8}V${y + 22}`, class: "coin-line" }),
    write(clamp(at, 40, width - 40), y - 12, `u = ${draw.uniform.toFixed(2)}`, "number ink", { anchor: "middle" }),
    write(left, y + 30, draw.say, "number muted"),
  );
  field.over.append(...parts);
}
