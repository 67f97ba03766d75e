// One step: its sentence, its tree (a Plotly figure made in Python), the chosen node, the table.
// Model text enters the page as textContent only; the labels inside the figure were escaped in Python.

const CONFIG = { responsive: true, displayModeBar: false, doubleClick: false, scrollZoom: false };
const ROW_PIXELS = 36;
const TALLEST = 760;
const VERDICTS = {
  root: "where the tree starts",
  accepted: "accepted",
  rejected: "rejected",
  unreached: "never reached",
  next: "the target's own",
};
const COLUMNS = [
  ["Token", (n) => n.label], ["Branch", (n) => n.path], ["Depth", (n) => n.depth], ["Draft prob.", (n) => number(n.draft)],
  ["Draft entropy", (n) => number(n.entropy)], ["Target prob.", (n) => number(n.target)],
  ["Target's choice", (n) => n.choice ?? ""], ["Verdict", (n) => VERDICTS[n.verdict]],
];

export function createStep(root, plotlyReady) {
  const find = (selector) => root.querySelector(selector);
  const chart = find(".tree");
  const sentence = find(".sentence");
  const details = find("details.table");
  let plotly = null;
  let frame = null;
  let chosen = 0;
  let wanted = null;
  let drawing = false;
  let height = 0; // only grows during a run, so that the page does not jump

  details.addEventListener("toggle", () => frame && fillTable());

  function show(next, index, count, quiet) {
    find(".step-name").textContent = `Step ${index} of ${count}`;
    if (next === frame) return;
    frame = next;
    sentence.setAttribute("aria-live", quiet ? "off" : "polite");
    sentence.replaceChildren(...frame.say.map(([style, text]) => styled("span", text, `say-${style}`)));
    choose(frame.focus);
    if (details.open) fillTable();
    draw();
  }

  // Draws the newest step only: while one is being drawn, later ones replace each other.
  async function draw() {
    wanted = frame;
    if (drawing) return;
    drawing = true;
    plotly ??= await plotlyReady();
    while (wanted) {
      const { figure } = wanted;
      wanted = null;
      Object.assign(figure.data[haloOf(figure.data)], placeOf(figure, chosen));
      height = Math.min(TALLEST, Math.max(height, figure.layout.meta.rows * ROW_PIXELS));
      chart.style.height = `${height}px`;
      const first = !chart.on;
      await plotly.react(chart, figure.data, figure.layout, CONFIG);
      if (first) listen();
    }
    drawing = false;
  }

  function listen() {
    const nodeOf = (event) => event.points.find((point) => point.customdata !== undefined)?.customdata;
    chart.on("plotly_hover", (event) => nodeOf(event) !== undefined && describe(nodeOf(event)));
    chart.on("plotly_unhover", () => describe(chosen));
    chart.on("plotly_click", (event) => nodeOf(event) !== undefined && choose(nodeOf(event)));
  }

  function choose(node) {
    chosen = node;
    describe(node);
    if (!plotly || drawing || !chart.data) return;
    const { x, y } = placeOf(frame.figure, node);
    plotly.restyle(chart, { x: [x], y: [y] }, [haloOf(chart.data)]);
  }

  function move(by) {
    if (!frame) return;
    const order = readingOrder(frame);
    choose(order[(order.indexOf(chosen) + by + order.length) % order.length]);
    find(".node").setAttribute("aria-live", "polite");
  }

  function describe(id) {
    const node = frame.nodes[id];
    find(".node-word").textContent = node.label;
    find(".node-verdict").textContent = VERDICTS[node.verdict];
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
    for (const id of readingOrder(frame)) {
      const row = body.insertRow();
      row.dataset.verdict = frame.nodes[id].verdict;
      for (const [, read] of COLUMNS) row.append(styled("td", String(read(frame.nodes[id]))));
    }
    find(".table-scroll").replaceChildren(table);
  }

  function reset(columns) {
    frame = null;
    height = 0;
    chart.style.setProperty("--columns", columns);
    find(".step-name").textContent = "Step";
    sentence.textContent = "Waiting for the first step.";
  }

  return { show, move, reset };
}

function facts(node) {
  const rows = [];
  if (node.draft !== null) rows.push(["draft probability", `${number(node.draft)}, rank ${node.rank}`]);
  if (node.entropy !== null) rows.push(["draft entropy after it", `${number(node.entropy)} nats`]);
  if (node.target !== null) rows.push(["target probability", `${number(node.target)}, rank ${node.target_rank}`]);
  if (node.choice !== null) rows.push(["target's choice after it", `${node.choice} (${number(node.choice_prob)})`]);
  return rows;
}

const haloOf = (data) => data.findIndex((trace) => trace.name === "selected");

// Where a node stands in the picture, for the halo behind the chosen one.
function placeOf(figure, node) {
  for (const trace of figure.data) {
    const place = trace.customdata?.indexOf(node) ?? -1;
    if (place >= 0) return { x: [trace.x[place]], y: [trace.y[place]] };
  }
  return { x: [null], y: [null] };
}

// Nodes as one reads the picture: by depth, then from the top.
function readingOrder({ figure, nodes }) {
  const places = new Map();
  for (const trace of figure.data) trace.customdata?.forEach((node, i) => places.set(node, [trace.x[i], -trace.y[i]]));
  return nodes.map((_, id) => id).sort((a, b) => places.get(a)[0] - places.get(b)[0] || places.get(a)[1] - places.get(b)[1]);
}

function styled(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}

function number(value) {
  return value === null ? "" : value.toFixed(2);
}
