// What happens inside a pass: the attention mask, the KV cache, a recorded draw. Drawn over the tree's field.

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
