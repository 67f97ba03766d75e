// The phases of a step, read from its frame alone: which nodes are there in each, where the draft's distribution opens,
// and a line in plain words. Nothing here touches the page.

const COUNTS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
const PRUNED = "p";

// A step as phases need it. Nodes that the target judges come first and in the order of the cache; `next` is the bonus
// token, -1 where none was used; `cut` are pruned guesses. `kept` are the columns that both caches keep.
export function readStep(frame) {
  const { label, parent, verdict, draft, rank, entropy, choices } = frame.nodes;
  const everyone = [...verdict].map((_, id) => id);
  const of = (codes) => everyone.filter((id) => codes.includes(verdict[id]));
  const cut = of(PRUNED);
  const nodes = of("oaru");
  const kept = of("oa");
  const depth = [];
  for (const id of everyone) depth[id] = parent[id] < 0 ? 0 : depth[parent[id]] + 1;
  const families = everyone.map(() => []);
  for (const id of [...nodes.slice(1), ...cut]) families[parent[id]].push(id);
  for (const family of families) family.sort((a, b) => draft[b] - draft[a]);
  return {
    nodes, cut, kept, depth, parent, families, draft, rank, entropy, choices, verdict,
    words: label.map((text) => text.trim()), next: verdict.indexOf("n"),
    levels: Math.max(0, ...[...nodes, ...cut].map((id) => depth[id])),
  };
}

// The phases in order; `threshold` is the entropy in nats above which the run's rule calls the draft unsure, if it has one.
export function phasesOf(step, threshold) {
  const guesses = Array.from({ length: step.levels }, (_, level) => guess(step, level + 1, threshold));
  const drafted = step.nodes.length - 1;
  const root = step.words[0];
  return [
    { kind: "root", level: 0, forks: [], say: `The tree starts at “${root}”, the last token that the target has said.` },
    ...guesses,
    ...(step.cut.length ? [{ kind: "prune", level: Infinity, forks: [], say: pruneWords(step) }] : []),
    { kind: "check", level: Infinity, forks: [], say: drafted ? `1 target pass judges ${drafted === 1 ? "the one guess" : `all ${drafted} guesses at once`}.`
      : "1 target pass, for one token: nothing was guessed." },
    ...(drafted ? [{ kind: "accept", level: Infinity, forks: [], say: acceptWords(step), saved: savedAt(step) }] : []),
    { kind: "keep", level: Infinity, forks: [], say: keepWords(step) },
  ];
}

function guess(step, level, threshold) {
  const here = [...step.nodes, ...step.cut].filter((id) => step.depth[id] === level);
  const parents = [...new Set(here.map((id) => step.parent[id]))];
  const doubt = (id) => step.entropy[id] ?? 0;
  const forks = parents.filter((id) => step.families[id].length > 1).sort((a, b) => doubt(b) - doubt(a));
  const start = `Guess ${level}: ${count(here.length, "new guess")}.`;
  if (!forks.length) return { kind: "guess", level, forks, say: `${start} ${sureWords(step, parents, doubt)}` };
  const [first] = forks;
  const more = forks.length > 1 ? ` The tree branches at ${count(forks.length - 1, "more node")}.` : "";
  return { kind: "guess", level, forks, say: `${start} After “${step.words[first]}” the draft ${doubtWords(step, first, threshold)}${triedWords(step, first)}.${more}` };
}

function doubtWords(step, fork, threshold) {
  if (step.entropy[fork] === null) return "";
  return `${threshold != null && step.entropy[fork] > threshold ? "is unsure" : "has a choice"}: ${evenly(step, fork)}: `;
}

const evenly = ({ entropy, choices }, id) => `${entropy[id].toFixed(2)} nats ${choices[id]}`;

function triedWords(step, fork) {
  const kept = step.families[fork].filter((id) => step.verdict[id] !== PRUNED).length;
  if (kept === step.families[fork].length) return `tries ${spelled(kept)}`;
  return kept ? `tries ${spelled(kept)} of ${spelled(step.families[fork].length)}` : `weighs ${spelled(step.families[fork].length)} and keeps none`;
}

function sureWords(step, parents, doubt) {
  const known = parents.filter((id) => step.entropy[id] !== null).sort((a, b) => doubt(b) - doubt(a));
  if (!known.length) return "";
  const most = evenly(step, known[0]);
  return parents.length > 1 ? `One after each: nowhere is the draft less sure than ${most}.` : `The draft is sure enough to try one (${most}).`;
}

function pruneWords(step) {
  const stay = step.nodes.length - 1;
  return `${count(step.cut.length, "guess")} ${step.cut.length === 1 ? "is" : "are"} cut: the ${stay === 1 ? "one that stays goes" : `${stay} that stay go`} to the target.`;
}

// The first accepted node that was not the draft's favourite: without its branch the step would have ended above it.
function savedAt(step) {
  return step.kept.find((id) => id && step.rank[id] > 1) ?? -1;
}

function acceptWords(step) {
  const [stand, drafted, saved] = [step.kept.length - 1, step.nodes.length - 1, savedAt(step)];
  const start = `${stand ? stand : "None"} of ${count(drafted, "guess")} ${stand > 1 ? "stand" : "stands"}.`;
  if (saved < 0) return start;
  const tokens = step.kept.length - step.kept.indexOf(saved) - (step.next < 0); // more than favourites alone bring
  const brought = tokens ? `it saved ${count(tokens, "token")}` : "nothing came after it";
  const [favourite] = step.families[step.parent[saved]].filter((id) => id !== saved && step.verdict[id] !== PRUNED);
  const refused = favourite === undefined ? "" : `“${step.words[favourite]}” (${step.draft[favourite].toFixed(2)}) is refused; `;
  return `${start} ${refused}another branch had “${step.words[saved]}” (${step.draft[saved].toFixed(2)}): ${brought}.`;
}

function keepWords(step) {
  const [read, stay] = [step.nodes.length, step.kept.length];
  const columns = read === stay ? `${read === 1 ? "The new column stays" : `All ${read} new columns stay`} in the KV cache.`
    : `${stay} of the ${read} new columns ${stay === 1 ? "stays" : "stay"} in the KV cache, ${read - stay} ${read - stay === 1 ? "is" : "are"} dropped.`;
  if (step.next < 0) return `The answer ends here. ${columns}`;
  return `“${step.words[step.next]}” is the target's own next token: the root of the next step. ${columns}`;
}

const spelled = (number) => COUNTS[number] ?? String(number);

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}
