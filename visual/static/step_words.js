// The sentence about a step and the words about each node, as visual/player/explanations.py writes them: segments of a style
// and a text, which the page puts in as text.

import { judgedNodes } from "./trace_model.js";
import { END_MARK, reasonsOf, tokenLabel } from "./tree_layout.js";
import { fixed, letters, rounded, stripped, withoutBidi } from "./python_text.js";

const LONGEST_PATH = 80;
const NAMED = 3; // pruned guesses that are named

const two = (value) => fixed(value, 2);
export const evenChoices = (nats) => `≈ ${fixed(Math.exp(rounded(nats, 2)), 1)} even choices`;

// The last tokens of the branch down to `node` as running text.
function pathText(trace, step, node, words) {
  const text = stripped(withoutBidi(step.pathTo(node).slice(-words).map((one) => trace.texts[step.tokens[one]]).join("")));
  const all = letters(text);
  const short = all.length <= LONGEST_PATH ? text : `…${all.slice(1 - LONGEST_PATH).join("")}`;
  return short.replace(/^[.,;: ]+/, "") || short || tokenLabel(trace, step.tokens[node]);
}

export function stepSentence(trace, step) {
  if (!step.drafted) return [["plain", "Nothing was drafted; the target said "], ["target", tokenLabel(trace, step.bonus)], ["plain", "."]];
  const leaves = step.children.filter((family) => !family.length).length;
  return [
    ...fork(trace, step),
    ["plain", `Drafted ${count(step.drafted, "token")} on ${count(leaves, "branch")}; `],
    ["strong", `${step.emittedNodes.length || "none"} accepted`], ["plain", ". "],
    ...ending(trace, step),
  ];
}

const count = (number, noun) => `${number} ${number === 1 ? noun : noun + (noun.endsWith("ch") ? "es" : "s")}`;
const sampled = ({ config }) => config.temperature > 0; // no token is right or wrong then
const draft = (step, node) => two(Math.exp(step.log_probs[node]));

// The place where trying several words mattered most: where another than the favourite was right.
function fork(trace, step) {
  const forks = judgedNodes(step).filter(({ children, outcome }) => children.length > 1 && outcome !== "missed");
  if (!forks.length) return [];
  const { children, position } = forks.find(({ outcome }) => outcome === "saved") ?? forks[0];
  const family = step.likeliest(children);
  const said = [["plain", "Torn between "]];
  family.slice(0, NAMED).forEach((node, place) => {
    if (place) said.push(["plain", place === family.length - 1 ? " and " : ", "]);
    said.push(["em", tokenLabel(trace, step.tokens[node])], ["plain", ` ${draft(step, node)}`]);
  });
  if (family.length > NAMED) said.push(["plain", ` and ${family.length - NAMED} more`]);
  const tried = { 2: "both", 3: "all three" }[family.length] ?? `all ${family.length}`;
  const winner = tokenLabel(trace, step.tokens[step.emittedNodes[position]]);
  return [...said, ["plain", ` it tried ${tried}; `], ["strong", winner], ["plain", ` ${sampled(trace) ? "was accepted. " : "was right. "}`]];
}

function ending(trace, step) {
  if (step.bonusUnused) {
    if (trace.ends.has(step.emitted.at(-1))) return [["plain", "With "], ["em", END_MARK], ["plain", " the answer was complete."]];
    return [["plain", `With these the answer had the ${trace.config.max_new_tokens} tokens that it was allowed.`]];
  }
  const last = step.path.at(-1);
  const wanted = tokenLabel(trace, step.bonus);
  const drawn = step.bonus !== step.view.choices[last];
  const sure = drawn ? "." : ` (${two(step.view.choice_probs[last])}).`;
  const after = ["em", pathText(trace, step, last, 2)];
  const family = step.children[last];
  if (!family.length && trace.ends.has(step.bonus)) return [["plain", "After "], after, ["plain", " the target ended the answer"], ["plain", sure]];
  if (!family.length) {
    return [["plain", `The whole branch was ${sampled(trace) ? "accepted" : "right"}; after `], after, ["plain", " the target went on with "], ["target", wanted], ["plain", sure]];
  }
  const [best] = step.likeliest(family);
  return [
    ["plain", "After "], after, ["plain", " the draft expected "], ["rejected", tokenLabel(trace, step.tokens[best])],
    ["plain", ` (${draft(step, best)}); the target ${sampled(trace) ? "drew" : "wanted"} `], ["target", wanted], ["plain", sure],
  ];
}

// The verdict on each node, and what was pruned below it; then the bonus token and every pruned guess.
export function reasonTexts(trace, step) {
  const left = leftAt(step);
  const below = step.tokens.map(() => []);
  for (const guess of step.pruned) if (!trace.ends.has(step.tokens[guess.parent])) below[guess.parent].push(guess);
  const nodes = reasonsOf(step, sampled(trace)).map((code, node) => verdict(trace, step, node, code, left[node]) + prunedBelow(trace, step, node, below[node]));
  const next = step.bonusUnused ? "The answer had already ended or reached its limit, so this token was not used."
    : "The target's own word: the same pass that judges the tree also says what comes next.";
  return [...nodes, next, ...step.pruned.map((guess) => prunedReason(trace, step, guess))];
}

// Where each node's branch leaves the accepted one; the node itself where it does not.
function leftAt(step) {
  const path = new Set(step.path);
  const left = step.tokens.map((_, node) => node);
  for (let node = 1; node < left.length; node++) if (!path.has(step.parents[node])) left[node] = left[step.parents[node]];
  return left;
}

function verdict(trace, step, node, code, left) {
  if (code === "root") return "The last token of the step before, chosen by the target. The tree grows from here.";
  const parent = step.parents[node];
  const spread = trace.ruleName === "entropy" ? spreadOf(step.entropies[parent], step.children[parent].length, trace.config.entropy_threshold) : "";
  if (sampled(trace) && (code === "accepted" || code === "chance-against")) return spread + drawSentence(trace, step, node);
  if (code === "after-end") return "The answer had ended or reached its limit before it, so nobody asked for it.";
  if (code === "accepted") return `${spread}It is the target's own choice, so it stands.`;
  if (code === "another-wanted") return `${spread}The target wanted ${tokenLabel(trace, step.view.choices[parent])} (${two(step.view.choice_probs[parent])}).`;
  return `Never judged: its branch had already been left at ${tokenLabel(trace, step.tokens[left])}.`;
}

function prunedBelow(trace, step, node, below) {
  if (!below.length) return "";
  const named = below.slice(0, NAMED).map(({ token, log_prob: one }) => `${tokenLabel(trace, token)} (${two(Math.exp(one))})`);
  const more = below.length > NAMED ? ` and ${below.length - NAMED} more` : "";
  const missed = below.some(({ token }) => token === step.view.choices[node]) ? "; one of them the target wanted" : "";
  return ` Pruned after it, unchecked: ${named.join(", ")}${more}${missed}.`;
}

function prunedReason(trace, step, guess) {
  const kept = trace.ruleName === "cost-aware" ? "it would not have paid" : "the tree keeps only its likeliest guesses";
  const regret = guess.token === step.view.choices[guess.parent] ? " It is what the target wanted there." : "";
  return `The draft thought of it, but ${kept}, so the target was not asked.${regret}`;
}

function spreadOf(entropy, siblings, threshold) {
  if (siblings > 1 && entropy !== null && entropy > threshold) {
    return `Before this word the draft was unsure (${two(entropy)} nats, ${evenChoices(entropy)}), so it tried ${siblings} words. `;
  }
  if (siblings === 1 && entropy !== null && entropy <= threshold) return `Before this word the draft was sure (${two(entropy)} nats), so it tried one word. `;
  return "";
}

function drawSentence(trace, step, node) {
  const odds = `The target gives it ${two(step.view.token_probs[node])}, the draft ${draft(step, node)}`;
  const accepted = step.accepted.includes(node);
  if (!trace.exact) return `${odds}; chance decided ${accepted ? "for" : "against"} it.`;
  const depth = step.path.indexOf(step.parents[node]);
  const drawn = depth < step.accepted.length ? step.tokens[step.accepted[depth]] : step.bonus;
  return `${odds}; the target's draw fell on ${accepted ? "it" : tokenLabel(trace, drawn)}.`;
}
