// What lies below and above the tree's figure: the block of a pass, words, marks, numbers, dashed circles.

function drawUnder(field, tree, view, at, width, height) {
  const parts = [];
  const nodes = tree.parent.map((_, node) => node).filter((node) => node && at.shown[node] && tree.kind[node] !== "n");
  if (["pass", "words", "mask"].includes(view.name) && nodes.length) parts.push(block(at, nodes, width, height));
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

// A word, or a punctuation mark as a key.
function label(x, y, text, isMark, anchor, name, size) {
  if (!isMark) return [svg("text", { x, y, "text-anchor": anchor, class: `word ${name}`, "font-size": size }, text)];
  const middle = anchor === "start" ? x + 11 : x;
  return [
    svg("rect", { x: middle - 11, y: y - 17, width: 22, height: 22, rx: 5, class: `cap ${name}` }),
    svg(
      "text",
      { x: middle, y: y - 1, "text-anchor": "middle", class: `word strong ${name}`, "font-size": Math.min(size, 18) },
      text,
    ),
  ];
}

function levelWord(tree, view, at, kind, node) {
  const roomy = at.row >= 26 || "oan".includes(kind);
  if (!roomy) return [];
  const long = node === 0 && tree.text[0].length > LONG;
  const folded = view.fold && kind === "r";
  const name = `${CLASSES[kind]}${view.bold === node ? " strong" : ""}`;
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
  return svg("text", { x, y: at.y[node] + at.radius + 18.5, "text-anchor": anchor, class: "number" }, words);
}

// The large model's own word below a guess: equal, or another.
function wish(tree, view, at, node) {
  const lit = view.lit?.includes(node);
  const tight = at.column < 76;
  const size = lit ? (tight ? 15 : 18) : Math.min(15, at.size);
  const sign = tree.same[node] ? (tight ? "" : "= ") : "≠ ";
  const y = at.y[node] + at.radius + 19.5;
  const text = svg("text", {
    x: at.x[node],
    y,
    "text-anchor": "middle",
    class: `wish${lit ? " lit" : ""}`,
    "font-size": size,
  });
  text.append(svg("tspan", { class: tree.same[node] ? "" : "refused" }, sign), svg("tspan", {}, tree.wish[node]));
  if (!lit) return [text];
  const half = textWidth(sign + tree.wish[node], size) / 2 + 2;
  return [text, svg("path", { d: `M${at.x[node] - half} ${y + 6}H${at.x[node] + half}`, class: "lit-line" })];
}

function uprightWord(tree, view, at, kind, node) {
  const two = view.name === "words" && node && tree.wish[node] !== null && !tree.same[node];
  const folded = view.fold && kind === "r";
  const lit = view.name === "words" && view.lit?.includes(node);
  const name = lit ? "strong large" : CLASSES[kind];
  const x = at.x[node] + (folded ? -17 : view.halo === node ? 28 : 17);
  const parts = label(
    x,
    at.y[node] + (two ? 2 : 6),
    tree.text[node],
    tree.mark[node],
    folded ? "end" : "start",
    name,
    at.size,
  );
  const after = x + (tree.mark[node] ? 30 : textWidth(tree.text[node], at.size) + 7);
  if (view.probs?.includes(node))
    parts.push(svg("text", { x: after, y: at.y[node] + 5, class: "number" }, tree.small[node]));
  if (two) parts.push(svg("text", { x, y: at.y[node] + 18, class: "wish", "font-size": 13 }, `≠ ${tree.wish[node]}`));
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
    svg("text", { x, y: y + 6, "text-anchor": "middle", class: "word strong large", "font-size": 18 }, "?"),
    svg("text", { x: x + 25, y: y + 5, class: "number muted" }, "the large model’s word"),
  ];
}

function note(view, at, height) {
  const last = Math.max(...at.x);
  if (view.name === "trunk")
    return at.upright
      ? svg("g")
      : svg(
          "text",
          { x: at.x[1] - 0.46 * at.column, y: at.y[1] + 58, class: "word muted", "font-size": 15 },
          view.note,
        );
  const group = svg("g", { class: "pass-note" });
  if (at.upright) return group;
  const end = last + 26;
  group.append(
    svg(
      "text",
      {
        x: end,
        y: height - 36,
        "text-anchor": "end",
        class: "word large",
        "font-size": 15,
        "font-weight": 600,
      },
      "one pass",
    ),
    svg(
      "text",
      { x: end, y: height - 18, "text-anchor": "end", class: "number muted" },
      view.note,
    ),
  );
  return group;
}

// The first beat: words of the large model alone, one pass each.
function drawChain(field, { items, ask }) {
  const [width, height] = [field.width, field.height];
  const list = [...items, ["?", ask]];
  const upright = narrow();
  const gap = upright ? 6 : 10;
  const side = ((upright ? height : width) - gap * (list.length - 1)) / list.length;
  const box = (number) =>
    upright ? [0, number * (side + gap), width, side] : [number * (side + gap), 24, side, height - 48];
  const middle = (number) => number * (side + gap) + side / 2;
  const point = (number) => (upright ? [28, middle(number)] : [middle(number), height / 2 + 18]);
  const colours = palette(field.root);
  const last = list.length - 1;
  const points = list.map((_, number) => point(number));
  const marker = {
    symbol: "diamond",
    size: 20,
    opacity: 1,
    color: points.map((_, number) => (number === last ? colours.paper : colours.large)),
    line: { width: 2.5, color: colours.large },
  };
  const line = {
    type: "path",
    layer: "below",
    line: { color: colours.edge, width: 3 },
    path: `M${points[0].join()}L${points[last].join()}`,
  };
  const trace = {
    type: "scatter",
    mode: "markers",
    hoverinfo: "skip",
    cliponaxis: false,
    x: points.map(([x]) => x),
    y: points.map(([, y]) => y),
    marker,
  };
  field.plotly.react(field.plot, [trace], figureLayout(width, height, [line]), PLAIN);
  field.under.replaceChildren(
    ...list.map((_, number) => rectangle(box(number), 14, number === last ? "slab-open" : "slab")),
  );
  field.over.replaceChildren(
    ...list.flatMap(([text, pass], number) => {
      const [x, y] = points[number];
      const end = upright
        ? { x: width - 14, y: y + 5, "text-anchor": "end" }
        : { x, y: height - 44, "text-anchor": "middle" };
      const place = upright ? { x: 52, y: y + 6 } : { x, y: y - 30, "text-anchor": "middle" };
      return [
        svg(
          "text",
          { ...place, class: "word strong", "font-size": textWidth(text, 18) > side - 8 && !upright ? 13 : 18 },
          text,
        ),
        svg("text", { ...end, class: "number muted" }, pass),
      ];
    }),
  );
  field.at = null;
}

// --- inside a pass: the attention mask, the KV cache, a recorded draw ------------------------------------

const CELL = 13;

// Every row is one guess, every column what it may see: its ancestors and itself, after the text so far.
function drawMask(field, tree, cached) {
  const [width, height] = [field.width, field.height];
  const nodes = tree.parent.map((_, node) => node).filter((node) => tree.kind[node] !== "n");
  const names = Math.min(96, Math.max(...nodes.map((node) => textWidth(tree.text[node], 13))) + 12);
  const text = 84; // pixels for the columns of the text so far
  const cell = Math.min(CELL, (height - 40) / nodes.length, (width - names - text) / nodes.length);
  const [left, top] = [Math.max(names, (width - text - cell * nodes.length) / 2), 30];
  const parts = [
    svg("text", { x: left + text, y: 18, "text-anchor": "end", class: "number muted" }, `${cached} columns so far`),
    svg("text", { x: left + text + 8, y: 18, class: "number muted" }, "guesses of this pass"),
  ];
  nodes.forEach((node, row) => {
    const y = top + row * cell;
    const seen = new Set(ancestors(tree, node));
    if (cell >= 9)
      parts.push(
        svg(
          "text",
          { x: left - 6, y: y + cell - 2, "text-anchor": "end", class: "word", "font-size": Math.min(13, cell + 1) },
          tree.text[node],
        ),
      );
    parts.push(svg("rect", { x: left, y: y + 0.5, width: text, height: cell - 1.5, class: "sees text-so-far" }));
    nodes.forEach((column) => {
      parts.push(
        svg("rect", {
          x: left + text + 6 + column * cell,
          y: y + 0.5,
          width: cell - 1.5,
          height: cell - 1.5,
          class: seen.has(column) ? `sees${node === column ? " self" : ""}` : "blind",
        }),
      );
    });
  });
  field.plotly.react(field.plot, [], figureLayout(width, height, []), PLAIN);
  field.under.replaceChildren();
  field.over.replaceChildren(...parts);
  field.at = null;
}

function ancestors({ parent }, node) {
  const path = [];
  for (let at = node; at >= 0; at = parent[at]) path.push(at);
  return path;
}

// The columns of the pass in the cache: those of the accepted branch stay.
function drawCache(field, tree, cached) {
  const [width, height] = [field.width, field.height];
  const nodes = tree.parent.map((_, node) => node).filter((node) => tree.kind[node] !== "n");
  const kept = new Set([0, ...tree.path]);
  const text = Math.min(130, width * 0.25);
  const cell = Math.min(26, (width - text - 24) / nodes.length);
  const y = height - 30;
  const parts = [
    rectangle([2, y, text, 22], 4, "cache-column text-so-far"),
    svg("text", { x: 10, y: y + 15, class: "number" }, `${cached} columns`),
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
      svg("text", { x: left + 8, y: y + 12, class: "number" }, "kept"),
      svg("text", { x: left + bar - 8, y: y + 12, "text-anchor": "end", class: "number" }, "refused"),
    );
  }
  for (const [word, start, share] of draw.shares) {
    parts.push(rectangle([x(start), y, bar * share, 16], 2, word === draw.word ? "coin-keep" : "coin-share"));
    if (bar * share > textWidth(word, 13) + 8)
      parts.push(svg("text", { x: x(start) + 5, y: y + 12, class: "number" }, word));
  }
  const at = x(draw.uniform);
  parts.push(
    svg("path", { d: `M${at} ${y - 8}V${y + 22}`, class: "coin-line" }),
    svg(
      "text",
      { x: clamp(at, 40, width - 40), y: y - 12, "text-anchor": "middle", class: "number ink" },
      `u = ${draw.uniform.toFixed(2)}`,
    ),
  );
  parts.push(svg("text", { x: left, y: y + 30, class: "number muted" }, draw.say));
  field.over.append(...parts);
}
