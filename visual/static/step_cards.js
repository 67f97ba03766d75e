// Numbers and words about each node of a step, column by column, and what a sampling verifier drew: what
// visual/player/node_cards.py and draws.py make on a server.

import { evenChoices, reasonTexts } from "./step_words.js";
import { tokenLabel } from "./tree_layout.js";
import { fixed, rounded, startsWithSpace } from "./python_text.js";

const CODES = { root: "o", accepted: "a", rejected: "r", unreached: "u", next: "n", pruned: "p" };
const HIDDEN = "-"; // code of what is not drawn
const WEIGHED = 6; // guesses of one family that are named

export function nodeCards(layout) {
  const { trace, step, next, hidden, ended } = layout;
  const { view } = step;
  const blank = layout.pruned.map(() => null);
  const probability = (one) => rounded(one, 2);
  const behind = (entries) => [...entries.map((entry, node) => (ended[node] ? null : entry)), null, ...blank];
  const known = (write) => [...layout.entropies.map((entropy) => (entropy === null ? null : write(entropy))), null, ...blank];
  const [reasons, reason] = numbered(reasonTexts(trace, step));
  const [families, family] = numbered(familiesOf(layout));
  const [sources, source] = numbered(sourcesOf(layout));
  return {
    label: layout.tokens.map((token) => labelOf(trace, token)),
    token: layout.tokens,
    parent: layout.parents,
    verdict: layout.verdicts.map((verdict, node) => (hidden.has(node) ? HIDDEN : CODES[verdict])).join(""),
    draft: layout.logProbs.map((one, node) => (node === 0 || node === next ? null : probability(Math.exp(one)))),
    rank: [null, ...step.ranks.slice(1).map((rank) => rank + 1), null, ...blank],
    branch: [null, ...step.scores.slice(1).map((score) => probability(Math.exp(score))), null, ...blank],
    entropy: known(probability),
    choices: known(evenChoices),
    target: [null, ...view.token_probs.slice(1).map(probability), probability(view.choice_probs[step.path.at(-1)]), ...blank],
    target_rank: [null, ...view.token_ranks.slice(1).map((rank) => rank + 1), 1, ...blank],
    choice: behind(view.choices.map((token) => tokenLabel(trace, token))),
    choice_prob: behind(view.choice_probs.map(probability)),
    families, family, sources: sources.map((text) => `Guessed from ${text}.`), source, reasons, reason,
  };
}

// The different texts in their order, and for each entry the number of its text; null for an empty one.
function numbered(texts) {
  const different = [...new Set(texts.filter(Boolean))];
  const places = new Map(different.map((text, place) => [text, place]));
  return [different, texts.map((text) => places.get(text) ?? null)];
}

// Which guesses the draft weighed before each node, the likeliest first; "" for root and bonus token.
function familiesOf({ trace, parents, logProbs, tokens, verdicts, next, hidden }) {
  const families = parents.map(() => []);
  parents.forEach((parent, node) => parent >= 0 && node !== next && !hidden.has(node) && families[parent].push(node));
  const told = families.map((family) => {
    const likeliest = family.sort((one, other) => logProbs[other] - logProbs[one]);
    const named = likeliest.slice(0, WEIGHED).map((node) => `${tokenLabel(trace, tokens[node])} ${fixed(Math.exp(logProbs[node]), 2)}${verdicts[node] === "pruned" ? " (pruned)" : ""}`);
    return [...named, ...(family.length > WEIGHED ? [`${family.length - WEIGHED} more`] : [])].join(" · ");
  });
  return parents.map((parent, node) => (node === 0 || node === next ? "" : told[parent]));
}

// What each guess was made from; "" where that is not known here.
function sourcesOf({ trace, parents, next }) {
  const from = (parent) => {
    if (trace.drafter !== null) return "";
    if (trace.config.drafter === "prompt-lookup") return "the text so far";
    if (trace.setting.draft_reads === null) return "the draft's own reading of the text";
    return parent === 0 ? "the large model's own state at its last word" : "the draft's guess of such a state";
  };
  return parents.map((parent, node) => (node === 0 || node === next ? "" : from(parent)));
}

// With a space before it where the token begins a word, so that a branch reads as text.
function labelOf(trace, token) {
  const label = tokenLabel(trace, token);
  return startsWithSpace(trace.texts[token]) || trace.ends.has(token) ? ` ${label}` : label;
}

export function drawsOf(trace, step) {
  return step.draws.map((draw) => {
    const family = step.children[draw.node];
    return {
      node: draw.node, child: family.find((child) => step.tokens[child] === draw.token) ?? null, place: draw.tokens.indexOf(draw.token),
      uniform: draw.uniform, acceptance: draw.acceptance, credit: draw.credit,
      words: draw.tokens.map((token) => tokenLabel(trace, token)),
      guessed: draw.tokens.map((token) => family.some((child) => step.tokens[child] === token)),
      p: draw.target_probs, q: draw.draft_probs, starts: draw.starts,
    };
  });
}
