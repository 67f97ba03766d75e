// One step: its sentence, its tree (a Plotly figure made in Python), the chosen node, the table.
// Model text enters the page as textContent only; the labels inside the figure were escaped in Python.

const CONFIG = { responsive: true, displaylogo: false, doubleClick: "reset", scrollZoom: false,
  modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]], toImageButtonOptions: { format: "svg", filename: "specllava-step" } };
const LOWEST = 220; // pixels that a tree has at least where it grows to the right
const HALO = 23;
const CHOSEN_HALO = 28;
const VERDICTS = {
  o: ["root", "the target's own, from the step before"],
  a: ["accepted", "accepted"],
  r: ["rejected", "rejected"],
  u: ["unreached", "never reached"],
  n: ["next", "the target's own"],
  p: ["pruned", "pruned, not sent"],
};
const COLUMNS = [
  ["Token", (n) => n.label], ["Branch", (n) => n.path], ["Depth", (n) => n.depth], ["Draft prob.", (n) => number(n.draft)],
  ["Draft entropy", (n) => number(n.entropy)], ["Target prob.", (n) => number(n.target)],
  ["Target's choice", (n) => n.choice ?? ""], ["Verdict", (n) => n.said],
];

// `hint(count)` marks the first words of the step in its lane: those on the branch that is looked at. `fit` makes a
// figure fit its card.
export function createStep(root, plotlyReady, fit, hint) {
  const find = (selector) => root.querySelector(selector);
  const chart = find(".tree");
  const tell = (event, detail) => chart.dispatchEvent(new CustomEvent(event, { detail })); // "drawn": which step, "node": whose card
  const sentence = find(".sentence");
  const details = find(".chosen details.table");
  const pruned = find(".with-pruned input");
  let plotly = null;
  let frame = null;
  let chosen = 0;
  let wanted = null;
  let drawing = false;
  let room = 0; // pixels of height; only grows while runs are live, so that the page does not jump

  details.addEventListener("toggle", () => frame && fillTable());
  pruned.addEventListener("change", () => frame && redraw());

  function show(next, index, count, quiet) {
    find(".step-name").textContent = `Step ${index} of ${count}`;
    if (next === frame) return;
    frame = next;
    sentence.setAttribute("aria-live", quiet ? "off" : "polite");
    sentence.replaceChildren(...frame.say.map(([style, text]) => styled("span", text, `say-${style}`)));
    chosen = frame.focus;
    redraw();
  }

  function redraw() {
    find(".with-pruned span").textContent = frame.pruned ? `show ${count(frame, "p")} pruned` : "nothing pruned";
    pruned.disabled = !frame.pruned;
    if (!ids(frame).includes(chosen)) chosen = frame.focus;
    describe(chosen);
    if (details.open) fillTable();
    draw();
  }

  const ids = ({ nodes }) => nodes.label.map((_, id) => id).filter((id) => nodes.verdict[id] !== "-" && (nodes.verdict[id] !== "p" || pruned.checked));

  // For another room than before: inside a step its tree is taller.
  function anew() {
    room = 0;
    if (frame) redraw();
  }

  // Draws the newest step only: while one is being drawn, later ones replace each other.
  async function draw() {
    wanted = frame;
    if (drawing) return;
    drawing = true;
    try {
      plotly ??= await plotlyReady();
      while (wanted) {
        const [drawn, figure] = [wanted, fit(figureOf(wanted), find(".scroller").clientWidth, { inside: find(".step").matches(".is-inside") })];
        wanted = null;
        const halo = traceOf(figure.data, "marked");
        const { x, y, sizes } = halos(figure, []);
        Object.assign(halo, { x, y, marker: { ...halo.marker, size: sizes } });
        room = Math.max(room, figure.height);
        chart.style.height = `${room}px`;
        chart.style.minWidth = `${figure.width}px`;
        const first = !chart.on;
        await plotly.react(chart, figure.data, figure.layout, first ? CONFIG : undefined);
        chart.style.visibility = frame ? "" : "hidden";
        if (first) listen();
        tell("drawn", drawn);
      }
    } finally {
      drawing = false; // also where the library did not load: the next step tries again
    }
    reveal();
  }

  // Where the tree is wider than its card, the node of the card beside it is in sight.
  function reveal() {
    const place = chart.querySelector(".tracemarked .point")?.getBoundingClientRect();
    const card = find(".scroller").getBoundingClientRect();
    if (place && (place.left < card.left || place.right > card.right)) {
      find(".scroller").scrollLeft += place.left - card.left - card.width / 2;
    }
  }

  // Keeps room for the highest of these steps: as one walks through them nothing moves.
  function reserve(frames) {
    const width = find(".scroller").clientWidth;
    if (width) room = Math.max(room, ...frames.map((next) => fit(figureOf(next), width).height));
  }

  // The figure as it was made, or with its pruned guesses: then every row may lie elsewhere.
  function figureOf({ figure, pruned: moved }) {
    const { view } = document.documentElement.dataset;
    const stubs = view === "workbench" || find(".step").classList.contains("is-inside");
    const meta = view === "opening" ? { ...figure.layout.meta, checked: "" } : figure.layout.meta; // its sentence says it
    const shapes = figure.layout.shapes.map((shape) => (shape.name === "pruned-stubs" && !stubs ? { ...shape, opacity: 0 } : shape));
    const layout = { ...figure.layout, shapes, meta, uirevision: "run", dragmode: matchMedia("(pointer: fine)").matches && "pan" };
    if (!pruned.checked || !moved) {
      const seen = figure.data.filter((trace) => trace.visible !== false); // Plotly spends time on hidden ones too
      return { data: seen.map((trace) => ({ ...trace })), layout };
    }
    const data = figure.data.map((trace) => ({ ...trace, visible: true, y: moved.y[trace.uid] ?? trace.y }));
    const { edges, rows, range } = moved;
    return { data, layout: { ...layout, shapes: moved.shapes, meta: { ...layout.meta, rows, edges }, yaxis: { ...layout.yaxis, range } } };
  }

  function listen() {
    const nodeOf = (event) => event.points.find((point) => point.customdata !== undefined)?.customdata;
    chart.on("plotly_hover", (event) => nodeOf(event) !== undefined && look(nodeOf(event)));
    chart.on("plotly_unhover", () => look(undefined));
    chart.on("plotly_click", (event) => nodeOf(event) !== undefined && choose(nodeOf(event)));
  }

  // A node that is looked at, not chosen: its card, its branch in the tree and in the words; undefined: none any more.
  function look(node) {
    describe(node ?? chosen);
    mark(node === undefined ? [] : branch(node));
    hint(node === undefined ? 0 : branch(node).filter((id) => "an".includes(frame.nodes.verdict[id])).length);
  }

  // Halos behind the chosen node and the branch that is looked at.
  function halos(figure, nodes) {
    const chosenAt = placesOf(figure, [chosen]);
    const others = placesOf(figure, nodes.filter((node) => node !== chosen));
    const sizes = [...chosenAt.x.map(() => CHOSEN_HALO), ...others.x.map(() => HALO)];
    return { x: [...chosenAt.x, ...others.x], y: [...chosenAt.y, ...others.y], sizes };
  }

  function mark(nodes) {
    if (!plotly || drawing || !chart.data) return undefined;
    const { x, y, sizes } = halos(chart, nodes);
    return plotly.restyle(chart, { x: [x], y: [y], "marker.size": [sizes] }, [chart.data.findIndex((trace) => trace.name === "marked")]);
  }

  function choose(node) {
    chosen = node;
    describe(node);
    mark([])?.then(reveal);
  }

  function move(by) {
    if (!frame) return;
    const order = readingOrder();
    choose(order[(order.indexOf(chosen) + by + order.length) % order.length]);
    find(".node").setAttribute("aria-live", "polite");
  }

  // From the root down to a node.
  function branch(id) {
    const { parent } = frame.nodes;
    const nodes = [];
    for (let node = id; node >= 0; node = parent[node]) nodes.unshift(node);
    return nodes;
  }

  function card(id) {
    const { nodes } = frame;
    const read = (name) => nodes[name]?.[id] ?? null; // older saved pages lack a column
    const [verdict, said] = VERDICTS[nodes.verdict[id]];
    const text = branch(id).slice(-4).map((node) => nodes.label[node]).join("");
    return {
      label: read("label").trim(), path: text.replace(/^[\s.,;:]+/, "") || text, depth: branch(id).length - 1, verdict, said, reason: [nodes.sources?.[read("source")], nodes.reasons[read("reason")]].filter(Boolean).join(" "),
      draft: read("draft"), rank: read("rank"), branch: read("branch"), entropy: read("entropy"), choices: read("choices"), family: nodes.families[read("family")],
      target: read("target"), targetRank: read("target_rank"), choice: read("choice"), choiceProb: read("choice_prob"),
    };
  }

  function describe(id) {
    tell("node", id);
    const node = card(id);
    find(".node-word").textContent = node.label;
    find(".node-verdict").textContent = node.said;
    find(".node-verdict").dataset.verdict = node.verdict;
    find(".node-path").textContent = `… ${node.path}`;
    find(".node-reason").textContent = node.reason;
    find(".node-facts").replaceChildren(...facts(node).flatMap(([name, value]) => [styled("dt", name), styled("dd", value)]));
  }

  function fillTable() {
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const [name] of COLUMNS) head.append(Object.assign(styled("th", name), { scope: "col" }));
    const body = table.createTBody();
    for (const node of readingOrder().map(card)) {
      const row = body.insertRow();
      row.dataset.verdict = node.verdict;
      for (const [, read] of COLUMNS) row.append(styled("td", String(read(node))));
    }
    details.querySelector(".table-scroll").replaceChildren(table);
  }

  // Nodes as one reads the picture: by depth, then from the top.
  function readingOrder() {
    const places = new Map();
    for (const trace of figureOf(frame).data) trace.customdata?.forEach((node, i) => places.set(node, [trace.x[i], -trace.y[i]]));
    return ids(frame).sort((a, b) => places.get(a)[0] - places.get(b)[0] || places.get(a)[1] - places.get(b)[1]);
  }

  function reset(live) {
    frame = wanted = null;
    if (!live || !room) room = matchMedia("(min-width: 761px)").matches ? LOWEST : 0;
    chart.style.visibility = "hidden"; // another run's tree, until this one's clock has reached a step
    for (const part of ["node-word", "node-verdict", "node-path", "node-facts", "node-reason", "chosen .table-scroll"]) find(`.${part}`).replaceChildren();
    find(".step-name").textContent = "Step";
    find(".with-pruned span").textContent = "nothing pruned";
    pruned.disabled = true;
    sentence.textContent = "Waiting for the first step.";
  }

  // The run is over, and no step of it was made.
  function end(ending) {
    if (!frame) sentence.textContent = ending === "stopped" ? "Stopped before the first step." : "The run ended before its first step.";
  }

  return { show, move, reset, reserve, end, look, choose, redraw: anew };
}

function facts(node) {
  const rows = [];
  if (node.draft !== null) rows.push(["draft probability", node.rank ? `${number(node.draft)}, rank ${node.rank}` : number(node.draft)]);
  if (node.family) rows.push(["the draft weighed here", node.family]);
  if (node.branch !== null) rows.push(["draft probability of the branch", number(node.branch)]);
  if (node.entropy !== null) rows.push(["draft entropy after it", `${number(node.entropy)} nats, ${node.choices}`]);
  if (node.target !== null) rows.push(["target probability", `${number(node.target)}, rank ${node.targetRank}`]);
  if (node.choice !== null) rows.push(["target's choice after it", `${node.choice} (${number(node.choiceProb)})`]);
  return rows;
}

const traceOf = (data, name) => data.find((trace) => trace.name === name);
const count = ({ nodes }, code) => [...nodes.verdict].filter((verdict) => verdict === code).length;

// Positions of nodes in the picture.
export function placesOf({ data }, nodes) {
  const x = [];
  const y = [];
  for (const { customdata = [], x: xs, y: ys } of data) {
    customdata.forEach((node, place) => nodes.includes(node) && x.push(xs[place]) && y.push(ys[place]));
  }
  return { x, y };
}

function styled(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

const number = (value) => (value === null ? "" : value.toFixed(2));
