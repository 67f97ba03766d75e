// Charts of a whole run, each with its question, its answer in words, its figures and a table: what visual/figures/charts.py
// makes on a server. Words inside a figure are escaped, since Plotly reads them as a kind of HTML.

import { judgedNodes } from "./trace_model.js";
import { acceptance, reliability, totalsOf } from "./run_metrics.js";
import { evenChoices } from "./step_words.js";
import { tokenLabel } from "./tree_layout.js";
import { escaped, fixed, general, rounded } from "./python_text.js";

const SHARES = { range: [0, 1.04], tickformat: ".0%" };

export function chartsOf(alone, together, look) {
  if (!together?.steps.some(({ drafted }) => drafted)) return [];
  return [howFar, entropyChart, whereItBreaks, hardWords].map((make) => make(together, look)).concat(time(alone, together, look));
}

const sum = (numbers) => numbers.reduce((one, other) => one + other, 0);
const most = (numbers) => numbers.reduce((one, other) => Math.max(one, other), -Infinity);
const share = (accepted, tested) => (tested ? rounded(accepted / tested, 4) : null);
const of = (accepted, tested) => (tested ? `${accepted} of ${tested}` : "never tested");
const percent = (one) => (one === null || Number.isNaN(one) ? "–" : `${fixed(100 * one, 0)} %`);
const upTo = (first, count) => Array.from({ length: count }, (_, place) => first + place);
const bar = (x, y, color, rest = {}) => ({ type: "bar", x, y, marker: { color }, ...rest });
const chart = (question, answer, figures, columns, rows) => ({ question, answer, figures, columns, rows });

// An empty figure with named axes.
function panel(across, up, { panel: base }) {
  const layout = structuredClone(base);
  layout.xaxis.title = { text: across };
  layout.yaxis.title = up === null ? {} : { text: up };
  return { data: [], layout };
}

// Counts along the axes in whole numbers, with bars as wide for a short answer as for a long one.
function wholeNumbers({ layout }, first, places, { FEWEST }, tallest = null) {
  const last = first + Math.max(places, FEWEST) - 1;
  Object.assign(layout.xaxis, { range: [first - 0.6, last + 0.6], tick0: first, dtick: Math.max(1, Math.ceil(places / 12)) });
  if (tallest !== null) layout.yaxis.dtick = Math.max(1, Math.ceil(tallest / 6));
}

function howFar(trace, look) {
  const lengths = trace.steps.map(({ emittedNodes }) => emittedNodes.length);
  const drafted = trace.steps.map((step) => step.drafted);
  const best = most(lengths);
  const counts = upTo(0, best + 1).map((length) => lengths.filter((one) => one === length).length);
  const steps = upTo(1, lengths.length);
  const byStep = panel("step", "tokens accepted", look);
  byStep.data.push(bar(steps, lengths, look.colours.accepted));
  wholeNumbers(byStep, 1, steps.length, look, best);
  const howOften = panel("tokens accepted", "steps", look);
  howOften.data.push(bar(upTo(0, best + 1), counts, look.colours.accepted));
  wholeNumbers(howOften, 0, best + 1, look, most(counts));
  const own = trace.steps.filter(({ bonusUnused }) => !bonusUnused).length;
  const answer = `On average ${fixed(sum(lengths) / lengths.length, 1)} of ${fixed(sum(drafted) / drafted.length, 1)} drafted tokens were accepted per target pass; ${best} at best, none in ${counts[0]} of ${lengths.length}. The target's own came on top in ${own}: that makes τ = ${fixed(totalsOf(trace).tau, 1)} tokens per target pass.`;
  const rows = steps.map((step, at) => [step, drafted[at], lengths[at]].map(String));
  return chart("How far did each guess go?", answer, [byStep, howOften], ["Step", "Drafted", "Accepted"], rows);
}

// Counts of what came of the draft's guesses: an object for each bin of its entropy.
function outcomesByEntropy(judged, edges, look) {
  const bins = upTo(0, edges.length + 1).map(() => tally([], look));
  for (const { entropy, outcome } of judged) if (entropy !== null) bins[edges.filter((edge) => entropy > edge).length][outcome] += 1;
  return bins;
}

const tally = (judged, { outcomes }) => Object.fromEntries(Object.keys(outcomes).map((name) => [name, judged.filter(({ outcome }) => outcome === name).length]));
const all = (counts) => sum(Object.values(counts));

function entropyChart(trace, look) {
  const { NATS: edges, UNSURE: limit } = look;
  const judged = trace.steps.flatMap(judgedNodes);
  const bins = outcomesByEntropy(judged, edges, look);
  const names = [`0–${general(edges[0])}`, ...edges.slice(1).map((high, at) => `${general(edges[at])}–${general(high)}`), `over ${general(edges.at(-1))}`];
  const [sure, unsure] = outcomesByEntropy(judged, [limit], look);
  const answer = `Where the draft was unsure (over ${general(limit)} nats, ${evenChoices(limit)}), its favourite was accepted ${of(unsure.favourite, all(unsure))}, another branch saved ${unsure.saved} and ${unsure.missed} ${unsure.missed === 1 ? "was" : "were"} missed. Where it was sure, its favourite was accepted ${of(sure.favourite, all(sure))}.`;
  const tested = reliability(trace, look.RELIABILITY_BINS);
  const rows = bins.map((found, at) => [`${names[at]} nats`, ...[all(found), ...Object.values(found)].map(String)]);
  const promised = tested.map((bin) => [`probability ${fixed(bin.promised / bin.tested, 2)}`, String(bin.tested), String(bin.accepted), "–", String(bin.tested - bin.accepted)]);
  const columns = ["Where the draft gave", "Judged", "Favourite accepted", "Saved by another branch", "Missed"];
  return chart("What came of the draft's doubt?", answer, [outcomesFigure(bins, names, look), calibration(tested, look)], columns, [...rows, ...promised]);
}

const hatched = (shape) => ({ shape, fillmode: "overlay", fgcolor: "rgba(255,255,255,0.5)", size: 7, solidity: 0.25 });

function outcomesFigure(bins, names, look) {
  const figure = panel("the draft's entropy, nats (0.7 ≈ 2 even choices, 1.1 ≈ 3)", "share of the judged places", look);
  for (const [outcome, [name, color, pattern]] of Object.entries(look.outcomes)) {
    figure.data.push(bar(names, bins.map((found) => share(found[outcome], all(found))), color, {
      name, marker: { color, pattern: hatched(pattern) }, text: bins.map((found) => String(found[outcome] || "")), textposition: "inside",
      insidetextanchor: "middle", textangle: 0, hovertemplate: "%{text}",
    }));
  }
  Object.assign(figure.layout, { barmode: "stack", showlegend: true, legend: look.legend });
  Object.assign(figure.layout.yaxis, { range: [0, 1], tickformat: ".0%" });
  figure.layout.xaxis.type = "category";
  return figure;
}

function calibration(bins, look) {
  const guesses = sum(bins.map(({ tested }) => tested));
  const apart = guesses ? ` (off by ${fixed(sum(bins.map(({ accepted, promised }) => Math.abs(accepted - promised))) / guesses, 2)} on average)` : "";
  const figure = panel(`probability that the draft gave${apart}`, "share that the target took", look);
  figure.data.push({ type: "scatter", x: [0, 1], y: [0, 1], mode: "lines", line: { color: look.colours.quiet, dash: "dot", width: 1.5 } });
  figure.data.push({
    type: "scatter", x: bins.map(({ promised, tested }) => promised / tested), y: bins.map(({ accepted, tested }) => accepted / tested), mode: "lines+markers",
    line: { color: look.colours.rejected, width: 2 }, marker: { size: bins.map(({ tested }) => 6 + 1.5 * Math.sqrt(tested)), opacity: 1 },
  });
  Object.assign(figure.layout.yaxis, SHARES);
  Object.assign(figure.layout.xaxis, SHARES);
  return figure;
}

function whereItBreaks(trace, look) {
  const { depths, ranks } = acceptance(trace);
  const figure = (across, counts, first) => {
    const made = panel(across, "share accepted", look);
    made.data.push(bar(counts.map(([key]) => key + first), counts.map(([, found]) => share(...found)), look.colours.accepted));
    wholeNumbers(made, 1, counts.at(-1)[0] + first, look);
    Object.assign(made.layout.yaxis, SHARES);
    return made;
  };
  const [deepest, last] = depths.at(-1);
  let answer = `A first guess stood ${of(...depths[0][1])}; at depth ${deepest}, where reached, ${of(...last)}.`;
  const rank = new Map(ranks);
  if (rank.has(1)) answer += ` The draft's best guess was taken ${of(...rank.get(0))}, its second, where it had one, ${of(...rank.get(1))}.`;
  const row = (name, [accepted, tested]) => [name, String(tested), percent(share(accepted, tested))];
  const rows = [...depths.map(([depth, found]) => row(`depth ${depth}`, found)), ...ranks.map(([place, found]) => row(`rank ${place + 1}`, found))];
  const figures = [figure("depth of the guess", depths, 0), figure("rank among siblings", ranks, 1)];
  return chart("Where along the guess does it break?", answer, figures, ["Where", "Tested", "Accepted"], rows);
}

function hardWords(trace, look) {
  const places = trace.steps.flatMap((step, at) => judgedNodes(step).map((judged) => ({ ...judged, word: tokenLabel(trace, step.emitted[judged.position]), number: at + 1 })));
  const hardest = places.filter(({ entropy }) => entropy !== null).sort((one, other) => other.entropy - one.entropy).slice(0, look.HARDEST);
  const isSmall = ({ word }) => look.small.includes(word.toLowerCase());
  const kinds = [["small words (the, of, is …)", places.filter(isSmall)], ["all others", places.filter((place) => !isSmall(place))]];
  const favourites = (judged) => of(judged.filter(({ outcome }) => outcome === "favourite").length, judged.length);
  let answer = `Of small words the draft's favourite was accepted ${favourites(kinds[0][1])}, of all others ${favourites(kinds[1][1])}.`;
  if (hardest.length) {
    const [{ word, number, entropy }] = hardest;
    answer += ` Most unsure it was before ${word} in step ${number}: ${fixed(entropy, 2)} nats, ${evenChoices(entropy)}.`;
  }
  const byKind = outcomesFigure(kinds.map(([, judged]) => tally(judged, look)), kinds.map(([name]) => name), look);
  Object.assign(byKind.layout, { showlegend: false, bargap: 0.55 });
  byKind.layout.xaxis.title = {};
  const rows = hardest.map(({ word, number, entropy, outcome }) => [word, String(number), fixed(entropy, 2), look.outcomes[outcome][0]]);
  const columns = ["Token", "Step", "Entropy before it, nats", "What came of it"];
  return chart("Which words are hard?", answer, [hardestFigure(hardest, look), byKind], columns, rows);
}

function hardestFigure(hardest, look) {
  const figure = panel("the draft's entropy before the token, nats", null, look);
  const rows = hardest.map((_, at) => hardest.length - at);
  for (const [outcome, [name, color, pattern]] of Object.entries(look.outcomes)) {
    const chosen = rows.filter((_, at) => hardest[at].outcome === outcome);
    const entropies = hardest.filter((place) => place.outcome === outcome).map(({ entropy }) => entropy);
    figure.data.push(bar(entropies, chosen, color, { orientation: "h", name, marker: { color, pattern: hatched(pattern) }, width: 0.7 }));
  }
  Object.assign(figure.layout, { barmode: "stack", showlegend: true, legend: look.legend });
  Object.assign(figure.layout.yaxis, {
    tickvals: rows, ticktext: hardest.map(({ word }) => escaped(word)), automargin: true,
    range: [hardest.length - Math.max(hardest.length, look.FEWEST) + 0.4, hardest.length + 0.6],
  });
  return figure;
}

function time(alone, together, look) {
  const steps = upTo(1, together.steps.length);
  const parts = [["drafting", "draft", look.colours.drafting], ["the target's pass", "verify", look.colours.accepted], ["bookkeeping", "rest", look.colours.quiet]]
    .map(([name, key, color]) => ({ name, color, values: together.steps.map(({ seconds }) => 1e3 * seconds[key]) }));
  const pace = alone ? 1e3 * totalsOf(alone).secondsPerToken : NaN;
  const without = Number.isNaN(pace) ? [] : together.steps.map(({ emitted }) => pace * emitted.length);
  const figure = panel("step", "milliseconds", look);
  const milliseconds = (values) => values.map((value) => rounded(value, 3));
  for (const { name, color, values } of parts) figure.data.push(bar(steps, milliseconds(values), color, { name }));
  if (without.length) {
    const marker = { symbol: "line-ew", size: 14, line: { width: 2.5, color: look.colours.target } };
    figure.data.push({ type: "scatter", x: steps, y: milliseconds(without), mode: "markers", name: "target alone, same words", marker });
  }
  Object.assign(figure.layout, { barmode: "stack", showlegend: true, legend: look.legend });
  wholeNumbers(figure, 1, steps.length, look);
  const whole = sum(parts.map(({ values }) => sum(values)));
  const [drafting, checking, keeping] = parts.map(({ values }) => percent(whole ? sum(values) / whole : null));
  const against = without.length ? `, where the target alone needs ${fixed(sum(without), 0)} ms for the same words` : "";
  const answer = `${drafting} of it drafting, ${checking} the target's passes, ${keeping} bookkeeping: ${fixed(whole, 0)} ms${against}. Reading the picture comes before it.`;
  const rows = steps.map((step, at) => [String(step), ...parts.map(({ values }) => fixed(values[at], 1)), without.length ? fixed(without[at], 1) : "–"]);
  const columns = ["Step", "Drafting, ms", "Target's pass, ms", "Bookkeeping, ms", "Target alone, ms"];
  return chart("Where does the time go?", answer, [figure], columns, rows);
}
