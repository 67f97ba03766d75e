// A phase of a step on the tree that is drawn already: attributes and classes of Plotly's own elements change, and a layer
// of notes is laid over them. Plotly draws nothing for it, and leaving puts every attribute back.

const SVG = "http://www.w3.org/2000/svg";
const CIRCLE = "M6.5,0A6.5,6.5 0 1,1 -6.5,0A6.5,6.5 0 1,1 6.5,0Z"; // of a guess without a verdict
const UNJUDGED = ["root", "guess", "prune"]; // phases before the target's pass
const BLIND = [...UNJUDGED, "check"]; // phases before the verdict
const CLASSES = ["ph-hidden", "ph-guess", "ph-cut", "ph-dropped", "ph-pale"];
const [PANEL, ROW, BAR, WORD] = [156, 14, 42, 64]; // pixels of a fork's chart: width, height of a row, longest bar, word
const ROWS = 4;
const LONGEST = 9; // letters of a word in it
const PANELS = 3; // that are open at a time
const NOTE = 130; // pixels of the words at a branch that saved the step
const GAP = 14;
const BAND = 7; // pixels of the band around the nodes and their labels

// `words` is phase_words.js.
export function createDrawing(chart, words) {
  let marks = new Map(); // node: its elements and position
  let edges = []; // path of a style, its pieces by node
  let changed = new Map(); // element: attributes as Plotly wrote them
  let layer = null;
  let lifted = []; // labels that are a line higher
  let fixed = []; // boxes of the bracket and its words

  // Looks up the elements of the tree that Plotly has just drawn.
  function collect() {
    const corner = chart.getBoundingClientRect();
    marks = new Map();
    for (const { customdata = [], uid } of chart.data) {
      const [points, labels] = ["point", "textpoint"].map((name) => chart.querySelectorAll(`.trace${uid} .${name}`));
      customdata.forEach((node, place) => marks.set(node, { point: points[place], label: labels[place] }));
      labels.forEach((label) => label.classList.remove("ph-guess", "ph-cut")); // it is wider as it was drawn
    }
    for (const mark of marks.values()) {
      const [box, text] = [mark.point, mark.label].map((element) => element && boxOf(element, corner));
      Object.assign(mark, { x: box.x + box.width / 2, y: box.y + box.height / 2, boxes: text?.width ? [box, text] : [box] });
    }
    edges = chart.layout.shapes.map(({ name }, shape) => {
      const path = chart.querySelector(`.shapelayer path[data-index="${shape}"]`);
      return { path, nodes: chart.layout.meta.edges[shape], name }; // no nodes: the bracket below all that was judged
    });
    const bracket = [...edges.filter(({ nodes }) => !nodes).map(({ path }) => path), ...chart.querySelectorAll(".annotation")];
    fixed = bracket.map((element) => boxOf(element, corner));
  }

  // Shows a phase of a step, both as of step_phases.js.
  function show(step, phase) {
    for (const label of lifted) restore(label, "transform");
    if (!marks.size) collect();
    const blind = BLIND.includes(phase.kind);
    chart.dataset.phase = phase.kind;
    chart.classList.add("ph-tree"); // a selector by data-phase would have every node styled anew in each phase
    for (const [node, { point, label }] of marks) {
      const state = stateOf(step, phase, node);
      for (const element of [point, label]) if (element && !(state === "ph-hidden" && element.classList.contains("ph-cut"))) setState(element, state); // cut is hidden too
      if (blind && "aru".includes(step.verdict[node])) put(point, "d", CIRCLE);
      else restore(point, "d");
    }
    for (const edge of edges) drawEdge(edge, step, phase);
    layer?.remove();
    layer = chart.querySelector(".main-svg").appendChild(make("g", { class: "ph-layer" }));
    const seen = new Map([...marks].filter(([node]) => stateOf(step, phase, node) !== "ph-hidden"));
    const size = { width: chart.clientWidth, height: chart.clientHeight };
    const { taken, raised } = words.layWords(layer, phase.notes ?? [], seen, size);
    lifted = raised.map((node) => marks.get(node).label);
    lifted.forEach(lift);
    if (phase.kind === "check") layBand(taken);
    taken.push(...fixed);
    if (phase.saved > 0 && marks.has(phase.saved)) layNote(marks.get(phase.saved), taken);
    for (const fork of phase.forks.slice(0, PANELS)) layPanel(step, fork, taken);
  }

  // What a node is in a phase: "" where it is unchanged.
  function stateOf({ verdict, depth }, { kind, level }, node) {
    const code = verdict[node];
    if (code === "n") return kind === "keep" ? "" : "ph-hidden";
    if (code === "p") return kind === "guess" && depth[node] <= level ? "ph-guess" : kind === "prune" ? "ph-cut" : "ph-hidden";
    if (depth[node] > level) return "ph-hidden";
    if (BLIND.includes(kind)) return code === "o" ? "" : "ph-guess";
    if (kind === "accept" && code === "u") return "ph-pale";
    return kind === "keep" && !"oa".includes(code) ? "ph-dropped" : "";
  }

  function drawEdge({ path, nodes, name }, step, phase) {
    if (!nodes) return setState(path, UNJUDGED.includes(phase.kind) ? "ph-hidden" : "");
    restore(path, "d");
    const states = nodes.map((node) => stateOf(step, phase, node));
    const shown = states.filter((state) => state !== "ph-hidden");
    const most = shown.length ? shown.find((state) => state !== "ph-pale") ?? "ph-pale" : "ph-hidden"; // but for pale ones, those of one style share it
    path.classList.toggle("ph-plain", name === "branch" && BLIND.includes(phase.kind));
    setState(path, most);
    if (!shown.length || shown.length === nodes.length) return;
    const pieces = path.getAttribute("d").split(/(?=M)/);
    put(path, "d", pieces.filter((_, place) => states[place] !== "ph-hidden").join(""));
  }

  // --- notes over the tree --------------------------------------------------------------------

  // One band over all nodes and words: they are judged together.
  function layBand(boxes) {
    const [x, y] = ["x", "y"].map((side) => Math.max(2, Math.min(...boxes.map((box) => box[side])) - BAND));
    const [right, low] = [["x", "width"], ["y", "height"]].map(([side, size]) => Math.max(...boxes.map((box) => box[side] + box[size])) + BAND);
    layer.prepend(make("rect", { class: "ph-band", x, y, width: right - x, height: low - y, rx: 2 * BAND }));
  }

  function layNote(node, taken) {
    const place = placeFor(node, NOTE, 20, taken, 2 * GAP);
    if (place) layer.append(write("saved by this branch", place.x, place.y + GAP, "ph-note"));
  }

  // The draft's distribution after a node, at the node: guesses with their probabilities, the cut ones paler.
  function layPanel(step, fork, taken) {
    const family = step.families[fork].slice(0, ROWS);
    const more = step.families[fork].length - family.length;
    const height = ROW * (family.length + (more ? 1 : 0)) + 8;
    const node = marks.get(fork);
    const place = placeFor(node, PANEL, height, taken);
    if (!place) return;
    const panel = make("g", { class: "ph-panel", transform: `translate(${place.x},${place.y})`, "data-node": fork });
    panel.append(make("path", { class: "ph-leader", d: leader(node, place, height) }));
    panel.append(make("rect", { class: "ph-paper", width: PANEL, height, rx: 6 }));
    family.forEach((id, row) => panel.append(...barOf(step, id, row)));
    if (more) panel.append(write(`and ${more} more`, WORD, ROW * family.length + ROW, "ph-more"));
    layer.append(panel);
    taken.push({ ...place, width: PANEL, height });
  }

  function barOf({ words, draft, verdict }, id, row) {
    const [y, cut] = [ROW * row + 4, verdict[id] === "p"];
    const word = words[id].length > LONGEST ? `${words[id].slice(0, LONGEST - 1)}…` : words[id];
    return [
      write(word, WORD, y + 10, `ph-word${cut ? " cut" : ""}`),
      make("rect", { class: `ph-bar${cut ? " cut" : ""}`, x: WORD + 5, y: y + 2, width: Math.max(1, BAR * draft[id]), height: ROW - 5, "data-node": id }),
      write(`${draft[id].toFixed(2)}${cut ? " ✂" : ""}`, WORD + 9 + Math.max(1, BAR * draft[id]), y + 10, "ph-share"),
    ];
  }

  // Of the places below the node, above it, behind and below all that is shown and in the corners, the nearest that hides
  // nothing; none farther away than `farthest`.
  function placeFor(node, width, height, taken, farthest = Infinity) {
    const [most, low] = [chart.clientWidth - width - 2, chart.clientHeight - height - 2];
    const [right, under] = [Math.max(...taken.map((box) => box.x + box.width)) + GAP, Math.max(...taken.map((box) => box.y + box.height)) + GAP];
    const places = [[node.x - GAP, node.y + GAP], [node.x - GAP, node.y - height - 2 * GAP], [right, node.y - height / 2],
      [node.x + GAP, node.y + 2 * GAP], [node.x - GAP, under], [right, 2], [right, low], [2, low], [most, low], [most, 2]];
    const inside = places.map(([x, y]) => ({ x: clamp(x, most), y: clamp(y, low) }));
    const away = ({ x, y }) => Math.hypot(node.x - clamp(node.x, x + width, x), node.y - clamp(node.y, y + height, y));
    return inside.filter((place) => away(place) <= farthest && !taken.some((box) => words.meet({ ...place, width, height }, box)))
      .sort((a, b) => away(a) - away(b))[0];
  }

  // --- attributes -----------------------------------------------------------------------------

  function put(element, name, value) {
    if (!changed.has(element)) changed.set(element, {});
    const before = changed.get(element);
    const now = element.getAttribute(name);
    if (before[name]?.made !== now) before[name] = { was: now, made: value }; // unless it is what a phase before wrote
    before[name].made = value;
    if (now !== value) element.setAttribute(name, value);
  }

  function restore(element, name) {
    const before = changed.get(element)?.[name];
    if (before && element.getAttribute(name) === before.made) element.setAttribute(name, before.was);
    if (before) delete changed.get(element)[name];
  }

  // Makes room for a word between a node and its label.
  function lift(label) {
    put(label, "transform", `${label.getAttribute("transform") ?? ""}translate(0,${-words.LINE})`);
  }

  // The whole tree as Plotly drew it.
  function clear() {
    for (const [element, names] of changed) for (const name of Object.keys(names)) restore(element, name);
    layer?.remove();
    for (const element of chart.querySelectorAll([...CLASSES, "ph-plain"].map((name) => `.${name}`))) {
      element.classList.remove("ph-plain");
      setState(element, "");
    }
    delete chart.dataset.phase;
    chart.classList.remove("ph-tree");
    [marks, edges, changed, layer, lifted] = [new Map(), [], new Map(), null, []];
  }

  return { show, clear, forget: () => (marks = new Map()), hides: (...where) => stateOf(...where) === "ph-hidden" };
}

function setState(element, state) {
  const { classList } = element;
  if (state && classList.contains(state)) return; // it has one of them at most
  for (const name of CLASSES) classList.toggle(name, name === state);
  if (!classList.length) element.removeAttribute("class"); // Plotly's paths had none
}

function boxOf(element, corner) {
  const { left, top, width, height } = element.getBoundingClientRect();
  return { x: left - corner.left, y: top - corner.top, width, height };
}

const clamp = (value, most, least = 2) => Math.min(Math.max(least, value), Math.max(least, most));

// From the node to the nearest point of its chart, in the chart's own coordinates.
function leader(node, place, height) {
  const [x, y] = [node.x - place.x, node.y - place.y];
  return `M${x},${y}L${clamp(x, PANEL)},${clamp(y, height)}`;
}

function write(text, x, y, name) {
  return Object.assign(make("text", { x, y, class: name }), { textContent: text });
}

function make(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
