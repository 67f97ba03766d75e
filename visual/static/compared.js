// What runs beside each other look like in the lab: the words of one answer with a mark for every
// run, and trees one above the other. Model text enters the page as textContent; labels in figures were escaped in Python.

const TREE = { responsive: true, displayModeBar: false, staticPlot: true };

// A word, and below it a mark per run. A mark's `share` of the scale is its colour and height, `null` for no value;
// `sign` is a text or an element in it; `title` its meaning; `className` is the caller's own.
export function markedWord({ text, glued, marks }, tag = "span") {
  const word = make(tag, glued ? "gloss-word glued" : "gloss-word");
  word.title = [text, ...marks.map(({ title }) => title)].join("\n");
  word.append(make("span", "", text), ...marks.map(mark));
  return word;
}

function mark({ share, sign = "", className = "" }) {
  const cell = make("i", `gloss-mark ${share > 0.5 ? "bright" : ""} ${share === null ? "missing" : ""} ${className}`);
  cell.append(sign);
  if (share !== null) cell.style.setProperty("--share", share);
  return cell;
}

// A figure with the run's name and the step's sentence, into which `drawTree` draws.
export function treeCard({ name, say }) {
  const card = make("figure", "closeup");
  const caption = make("figcaption");
  caption.append(make("b", "", name), ...say.map(([style, text]) => make("span", `say-${style}`, text)));
  const chart = make("div", "tree");
  card.append(caption, chart);
  return { card, chart };
}

export function drawTree(library, chart, { data, layout, height, width }) {
  chart.style.height = `${height}px`;
  chart.style.minWidth = `${width}px`;
  return library.react(chart, data, layout, TREE);
}

export function make(tag, className = "", text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { className, textContent: text, ...rest });
}
