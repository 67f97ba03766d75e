// The phases of a step, read from its frame alone: which nodes are there in each, where the draft's distribution opens,
// and a line in plain words. Nothing here touches the page.

const COUNTS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
const PRUNED = "p";

// A step as phases need it. Nodes that the target judges come first and in the order of the cache; `next` is the bonus
// token, -1 where none was used; `cut` are pruned guesses. `kept` are the columns that both caches keep. `says` is the
// target's own next token after each node. `sampled` is as of the run (visual/player/draws.py), null without a temperature.
export function readStep(frame, { sampled = null, threshold = null } = {}) {
  const { label, parent, verdict, draft, rank, entropy, choices, target, choice } = frame.nodes;
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
    nodes, cut, kept, depth, parent, families, draft, rank, entropy, choices, verdict, target, sampled, threshold,
    says: choice, draws: frame.draws ?? [],
    words: label.map((text) => text.trim()), next: verdict.indexOf("n"),
    levels: Math.max(0, ...[...nodes, ...cut].map((id) => depth[id])),
  };
}

// The phases in order. `notes` are written at nodes, the most important first: `parts` as [kind, text], or a `mark` in
// their stead with them as its `title`; `beyond` are on the token after a node. `pairs` says the same in a sentence.
export function phasesOf(step) {
  const guesses = Array.from({ length: step.levels }, (_, level) => guess(step, level + 1, step.threshold));
  const drafted = step.nodes.length - 1;
  const root = step.words[0];
  return [
    { kind: "root", level: 0, forks: [], say: `The tree starts at “${root}”, the last token that the target has said.` },
    ...guesses,
    ...(step.cut.length ? [{ kind: "prune", level: Infinity, forks: [], say: pruneWords(step) }] : []),
    { kind: "check", level: Infinity, forks: [], say: checkWords(step), pairs: saidInText(step), notes: saidNotes(step) },
    ...(drafted ? [{ kind: "accept", level: Infinity, forks: [], say: acceptWords(step), saved: savedAt(step), pairs: pairsInText(step), notes: pairNotes(step) }] : []),
    { kind: "keep", level: Infinity, forks: [], say: keepWords(step) },
  ];
}

// Each guess that the target judged and what it is compared with: the target's own `word` there, or, where a coin decides,
// the `chance` with which it keeps the guess; `prob` is the target's probability of the guess. `fate` is "kept",
// "refused" or "open": nobody asked.
export function judgementsOf({ nodes, parent, verdict, says, target, draws, sampled }) {
  const fates = { a: "kept", r: "refused", u: "open" };
  const coins = new Map(draws.filter(({ acceptance }) => acceptance !== null).map(({ child, acceptance }) => [child, acceptance]));
  const own = new Map(draws.filter(() => sampled === "best").map((draw) => [draw.node, draw]));
  return nodes.filter((node) => node > 0).map((node) => {
    const draw = own.get(parent[node]);
    const word = sampled ? draw?.words[draw.place] : says[parent[node]];
    const chance = draw ? draw.p[draw.place] : coins.get(node);
    const passed = coins.size > 0 && verdict[node] === "r" && chance === undefined; // a sibling was kept before its turn
    return { node, fate: passed ? "open" : fates[verdict[node]], word: word ?? null, chance: chance ?? null, prob: target[node] };
  });
}

// The target's own token after each guess that nothing follows.
export function endsOf({ nodes, parent, says, sampled }) {
  const followed = new Set(nodes.map((node) => parent[node]));
  return sampled ? [] : nodes.filter((node) => node && !followed.has(node) && says[node] !== null).map((node) => ({ node, word: says[node] }));
}

const SIGNS = { kept: ["=", "✓", "yes"], refused: ["≠", "✗", "no"] };
const FATES = ["kept", "refused", "open"];

// What stands at the guesses while the pass is read: the target's own token, or its probability of the guess.
function saidNotes(step) {
  const judged = judgementsOf(step).filter(({ word, prob }) => (step.sampled ? prob : word) !== null);
  const notes = judged.map(({ node, fate, word, prob }) => step.sampled
    ? { node, fate: "said", first: fate, parts: [["own", `p ${prob.toFixed(2)}`]] }
    : { node, fate: "said", first: fate, parts: [["own", word]], mark: ["own", "·"], title: word });
  return [...byFate(notes), ...endsOf(step).map(({ node, word }) => ({ node, fate: "said", beyond: true, parts: [["own", `→ ${word}`]] }))];
}

// Each guess beside what it is compared with; those that nobody asked for last.
function pairNotes(step) {
  const pairs = byFate(judgementsOf(step).map((one) => ({ ...one, first: one.fate }))).map((one) => pairNote(step, one)).filter(Boolean);
  const ends = endsOf(step).map(({ node, word }) => ({ node, fate: node === step.kept.at(-1) ? "said" : "open", beyond: true, parts: [["own", `→ ${word}`]] }));
  return [...pairs, ...ends];
}

function pairNote({ words, sampled }, { node, fate, word, chance }) {
  if (fate === "open") return word === null || sampled ? null : { node, fate, parts: [["own", word]] };
  const [sign, verdict, kind] = SIGNS[fate];
  const odds = chance === null ? "" : ` ${chance.toFixed(2)}`;
  const parts = word === null ? [[kind, `${verdict}${odds}`]] : [[kind, `${verdict} ${sign} `], ["own", word], [kind, odds]];
  const title = word === null ? `${words[node]} ${verdict}${odds}` : `${words[node]} ${sign} ${word}${odds} ${verdict}`;
  return { node, fate, parts, mark: [kind, verdict], title };
}

const byFate = (notes) => [...notes].sort((a, b) => FATES.indexOf(a.first) - FATES.indexOf(b.first));

function saidInText(step) {
  if (step.sampled) return judgementsOf(step).filter(({ prob }) => prob !== null).map(({ node, prob }) => `“${step.words[node]}”: p = ${prob.toFixed(2)}`).join("; ");
  return step.nodes.filter((node) => step.says[node] !== null).map((node) => `after “${step.words[node]}” it says “${step.says[node]}”`).join("; ");
}

function pairsInText(step) {
  const judged = judgementsOf(step).filter(({ fate }) => fate !== "open");
  return judged.map(({ node, fate, word, chance }) => {
    const compared = word === null ? "" : ` is ${fate === "kept" ? "" : "not "}“${word}”`;
    return `“${step.words[node]}”${compared}: ${fate}${chance === null ? "" : ` (${chance.toFixed(2)})`}`;
  }).join("; ");
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

function checkWords({ nodes, sampled }) {
  const drafted = nodes.length - 1;
  if (!drafted) return "One pass of the large model, for one token: nothing was guessed.";
  const guesses = drafted === 1 ? "the one guess" : "every guess";
  const all = drafted === 1 ? "" : `, all ${drafted} at once`;
  return sampled ? `One pass of the large model gives ${guesses} its own probability p${all}.` : `One pass of the large model writes its own next word after ${guesses}${all}.`;
}

const RULES = { // how a guess comes to stay
  greedy: "Where its word equals the guess, the guess stays",
  best: "The large model draws its own word by chance; where it equals the guess, the guess stays",
  drawn: "A coin keeps each guess with the probability shown, so that chance stays the large model's",
};

function acceptWords(step) {
  const [stand, drafted, saved] = [step.kept.length - 1, step.nodes.length - 1, savedAt(step)];
  const start = `${RULES[step.sampled ?? "greedy"]}: ${stand || "none"} of ${count(drafted, "guess")}.`;
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
