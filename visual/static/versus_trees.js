// Both trees at one word of A against B, one above the other. What only one of them guessed has an outline.

// `sides` are those of versus.js; `at` is the place of a word that both answers have in common.
export async function show(place, sides, at, { compared, files, tree_fit }, plotly) {
  const steps = await Promise.all(sides.map((side) => stepAt(side, at, files.unpacked)));
  place.querySelector(".before").textContent = `Both trees at “${steps[0].word}”, token ${at + 1}. Outlined: guesses that only one of the two has.`;
  const keys = steps.map(guesses);
  const cards = steps.map(({ number, picture }, side) => compared.treeCard({ name: `${"AB"[side]} · step ${number}`, say: picture.say }));
  place.querySelector(".pair").replaceChildren(...cards.map(({ card }) => card));
  steps.forEach((step, side) => {
    const own = onlyHere(step, keys[side], steps[1 - side], keys[1 - side]);
    const figure = outlined(step.picture.figure, step.node, own);
    const drawn = tree_fit.fit(figure, place.clientWidth);
    cards[side].chart.dataset.node = step.node;
    compared.drawTree(plotly, cards[side].chart, drawn);
  });
}

// The step that said a word: its picture, the node of the word, and the ids that had been said before its tree, root included.
async function stepAt({ steps, words }, at, unpacked) {
  const word = words[at];
  const number = Math.max(1, word.step); // the prompt's pass has no tree: its word is the root of the first
  const picture = JSON.parse(await unpacked(steps[number].picture));
  const { verdict } = picture.nodes;
  const path = [0, ...[...verdict].flatMap((code, node) => (code === "a" ? [node] : []))];
  const node = word.step ? (path[word.place + 1] ?? verdict.indexOf("n")) : 0;
  const said = words.filter(({ step }) => step < number).map(({ id }) => id);
  return { number, picture, node, said, word: word.text.trim() || "■" };
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

function outlined(figure, word, own) {
  const ring = (uid, nodes) => ({ type: "scatter", name: uid, uid, mode: "markers", hoverinfo: "skip", cliponaxis: false,
    ...placesOf(figure, nodes), marker: { symbol: uid === "only" ? "circle-open" : "circle", size: 24, color: uid === "only" ? "#8b9096" : "rgba(240,180,0,0.42)", line: { width: uid === "only" ? 2 : 0 } } });
  const data = figure.data.filter(({ name, visible }) => name !== "marked" && visible !== false);
  return { ...figure, data: [ring("word", [word]), ...data, ring("only", own)] };
}

function placesOf({ data }, nodes) {
  const found = data.flatMap(({ customdata = [], x, y }) => customdata.flatMap((node, place) => (nodes.includes(node) ? [[x[place], y[place]]] : [])));
  return { x: found.map(([x]) => x), y: found.map(([, y]) => y) };
}
