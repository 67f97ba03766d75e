// Both trees at one word of A against B, one above the other. What only one of them guessed has an outline.

const HALO = 28; // pixels across
const RING = 24;
const LEAST = 150; // pixels of height

// `sides` are those of versus.js; `at` is the index of a word that both answers have in common.
export async function show(place, sides, at, modules, plotly) {
  const { compared, files, tree_fit } = modules;
  const steps = await Promise.all(sides.map((side) => stepAt(side, at, files.unpacked)));
  place.querySelector(".before").textContent = `Both trees at “${steps[0].word}”, token ${at + 1}. Outlined: guesses that only one of the two has.`;
  const keys = steps.map(guesses);
  const cards = steps.map(({ number, picture }, side) => compared.treeCard({ name: `${"AB"[side]} · step ${number}`, say: picture.say }));
  place.querySelector(".pair").replaceChildren(...cards.map(({ card }) => card));
  steps.forEach((step, side) => {
    const own = onlyHere(step, keys[side], steps[1 - side], keys[1 - side]);
    const figure = outlined(step.picture.figure, step.node, own, modules.step.placesOf);
    const drawn = tree_fit.fit(figure, place.clientWidth, { least: LEAST });
    cards[side].chart.dataset.node = step.node;
    compared.drawTree(plotly, cards[side].chart, drawn);
  });
}

// The step that gave a word: its picture, the node of the word, and the ids before its tree, root included.
async function stepAt({ steps, words }, at, unpacked) {
  const word = words[at];
  const number = Math.max(1, word.step); // the prompt's pass has no tree: its word is the root of the first
  const picture = JSON.parse(await unpacked(steps[number].picture));
  const { verdict } = picture.nodes;
  const path = [0, ...[...verdict].flatMap((code, node) => (code === "a" ? [node] : []))];
  const node = word.step ? (path[word.place + 1] ?? verdict.indexOf("n")) : 0;
  const said = words.filter(({ step }) => step < number).map(({ id }) => id);
  return { number, picture, node, said, word: word.shown };
}

// The whole text down to every guess, as ids: equal ones are the same guess, however the two answers were cut into steps.
function guesses({ picture: { nodes }, said }) {
  const keys = [said.map((id) => `${id},`).join("")];
  for (let node = 1; node < nodes.token.length; node++) keys.push(`${keys[nodes.parent[node]]}${nodes.token[node]},`);
  return keys;
}

function onlyHere({ picture: { nodes } }, keys, other, others) {
  const there = new Set(others.filter((_, node) => "oaru".includes(other.picture.nodes.verdict[node])));
  return keys.flatMap((key, node) => ("aru".includes(nodes.verdict[node]) && !there.has(key) && !others[0].startsWith(key) ? [node] : []));
}

// A halo behind the word, as behind the chosen node of a step, and rings around what only this tree has.
function outlined(figure, word, own, placesOf) {
  const data = figure.data.filter(({ visible }) => visible !== false).map((trace) => (
    trace.name === "marked" ? { ...trace, ...placesOf(figure, [word]), marker: { ...trace.marker, size: HALO } } : trace
  ));
  const marker = { symbol: "circle-open", size: RING, line: { width: 2 } };
  const rings = { type: "scatter", name: "only", uid: "only", mode: "markers", hoverinfo: "skip", cliponaxis: false, marker, ...placesOf(figure, own) };
  const { checked, ...meta } = figure.layout.meta; // the bracket around what one pass checked needs room of its own
  return { layout: { ...figure.layout, meta }, data: [...data, rings] };
}
