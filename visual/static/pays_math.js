// What recorded steps would take where passes cost something else; all times in milliseconds. Python's side of the same
// sums is specllava/findings/replays.py.

export const GUESSES = 20; // of the wider one of the two target passes that a person is asked for

const sum = (list, read) => list.reduce((total, item) => total + read(item), 0);

// A target pass that verifies this many guesses: on a straight line through the two that are known.
const verifying = ({ one, many }, guesses) => one + ((many - one) * guesses) / GUESSES;

// Steps are { levels, guesses, emitted }; `one`, `many` and `level` are what passes cost, `reading` and `drafting` what
// target and draft take to read the prompt, which also gives the first of an answer's `tokens`.
export function priced(steps, costs) {
  const emitted = sum(steps, (step) => step.emitted);
  const taken = sum(steps, (step) => step.levels * costs.level + verifying(costs, step.guesses));
  const speedup = (costs.one * emitted) / taken;
  const tau = emitted / steps.length;
  const behind = (costs.tokens - 1) * costs.one;
  const alone = costs.reading + behind;
  const together = costs.reading + costs.drafting + behind / speedup;
  return { tau, speedup, breakEven: tau / speedup, alone, together, inAll: alone / together };
}

// What a level of the draft may cost until these steps take as long as the target alone.
export function dearestLevel(steps, costs) {
  const left = sum(steps, (step) => costs.one * step.emitted - verifying(costs, step.guesses));
  return left / sum(steps, (step) => step.levels);
}

// From how many tokens of an answer on what is won while answering outweighs what the draft takes to read.
export function shortestAnswer(speedup, costs) {
  return 1 + costs.drafting / (costs.one * (1 - 1 / speedup));
}

// Costs of two passes and of a level, pooled: `steps` also know how long they drafted, and how long all else took.
function pooled(steps, one) {
  const [guesses, levels] = [sum(steps, (step) => step.guesses), sum(steps, (step) => step.levels)];
  const beyond = sum(steps, (step) => step.rest - one);
  return { one, many: Math.max(one, one + (GUESSES * beyond) / (guesses || 1)), level: levels ? sum(steps, (step) => step.drafted) / levels : 0 };
}

// --- what one set of trees buys against another -----------------------------------------------------
// A side is { tokens, passes, drafting, guesses }, sums over its steps; `drafting` and all costs are in milliseconds.

const SAME = 0.005; // ratios this near to 1 are none
export const ALONE = { tokens: 1, passes: 1, drafting: 0, guesses: 0 }; // the target, a token at a time

// Sums over recorded steps { levels, guesses, emitted }, each level of the draft at one cost.
export function sideOf(steps, level) {
  return { tokens: sum(steps, (step) => step.emitted), passes: steps.length, drafting: level * sum(steps, (step) => step.levels), guesses: sum(steps, (step) => step.guesses) };
}

// Ratios of B over A, and the cost of checking GUESSES guesses at which both are as fast; null where none decides it. A
// pass costs `one` and, for each guess that it checks, an equal part of what `many` costs more.
export function gainOf(a, b, { one, many }) {
  const fixed = ({ drafting, passes, tokens }) => (drafting + passes * one) / tokens;
  const checked = ({ guesses, tokens }) => guesses / tokens;
  const took = (side) => fixed(side) + (checked(side) * (many - one)) / GUESSES;
  const more = checked(b) - checked(a);
  const edge = Math.abs(more) < 1e-9 ? null : one + (GUESSES * (fixed(a) - fixed(b))) / more;
  return { tokens: b.tokens / b.passes / (a.tokens / a.passes), speed: took(a) / took(b), edge, wider: more > 0 };
}

// One sentence; `where` says whose costs these are.
export function gainSentence(a, b, costs, where = "here") {
  const { tokens, speed, edge, wider } = gainOf(a, b, costs);
  return `${tokensOf(tokens)}, ${speedOf(speed)} ${where}: ${edgeOf(edge, wider, costs, where)}.`;
}

function tokensOf(ratio) {
  if (Math.abs(ratio - 1) <= SAME) return "As many tokens a pass";
  return ratio >= 2 ? `${ratio.toFixed(1)}× the tokens a pass` : `${ratio > 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(0)} % tokens a pass`;
}

function speedOf(ratio) {
  if (Math.abs(ratio - 1) <= SAME) return "as fast";
  return ratio >= 2 ? `${ratio.toFixed(1)}× as fast` : `${Math.abs(100 * (ratio - 1)).toFixed(0)} % ${ratio > 1 ? "faster" : "slower"}`;
}

function edgeOf(edge, wider, { one, many }, where) {
  if (edge === null) return "as many guesses are checked for a token, so what checking costs does not decide";
  if (edge <= one) return wider ? `it would not pay even if checking ${GUESSES} guesses cost no more than one token` : "it pays whatever checking costs";
  return `it pays where checking ${GUESSES} guesses costs ${wider ? "less" : "more"} than ${milliseconds(edge)} (${where}: ${milliseconds(many)})`;
}

const milliseconds = (value) => `${Number(value.toPrecision(value < 100 ? 2 : 3)).toLocaleString("en")} ms`;

// --- a run that was shown -------------------------------------------------------------------------

// A lane's frames: its prefill, then its steps. Levels are those that a kept node was expanded in.
export function stepsOf(frames) {
  return frames.filter(({ nodes }) => nodes).map(({ nodes, tokens, seconds: [draft, verify, keep] }) => {
    const depths = [];
    nodes.parent.forEach((parent, node) => depths.push(parent < 0 ? 0 : depths[parent] + 1));
    const expanded = new Set(depths.filter((_, node) => nodes.entropy[node] !== null));
    const guesses = [...nodes.verdict].filter((code) => "aru".includes(code)).length;
    return { levels: expanded.size, guesses, emitted: tokens.length, drafted: 1000 * draft, rest: 1000 * (verify + keep) };
  });
}

// Measured costs of a run of both lanes; nothing where one of them, or its numbers, are missing.
export function measured(alone, together) {
  const steps = stepsOf(together);
  const plain = alone.filter((frame) => frame.kind === "step");
  if (!plain.length || !sum(steps, (step) => step.guesses)) return null;
  const one = (1000 * sum(plain, ({ seconds }) => sum(seconds, (part) => part))) / plain.length;
  const reading = 1000 * alone[0].seconds;
  return { ...pooled(steps, one), reading, drafting: Math.max(0, 1000 * together[0].seconds - reading), tokens: 1 + sum(steps, (step) => step.emitted) };
}

// --- what cannot be -------------------------------------------------------------------------------

const MOST = 40; // times as fast: no draft comes near

// A question about numbers that exclude each other or that no machine has; "" for believable ones.
export function questionOf(steps, costs) {
  const { one, many, level } = costs;
  if (many < one) return `${GUESSES} guesses in ${milliseconds(many)}, and one token in ${milliseconds(one)}? A pass that checks more takes no less.`;
  if (many > (GUESSES + 1) * one) return `${GUESSES} guesses in ${milliseconds(many)}? One by one they would take ${milliseconds((GUESSES + 1) * one)}.`;
  if (level === 0 && steps.some(({ levels }) => levels > 0)) return "A level of the draft in 0 ms? Only guesses that are looked up cost nothing, and they have no levels.";
  const { speedup } = priced(steps, costs);
  return speedup > MOST ? `${speedup.toFixed(0)}× as fast? No draft is known to bring more than ${MOST}×.` : "";
}

// A question about a mean step that somebody entered: { emitted, guesses, levels }; "" for a possible one.
export function stepQuestion({ emitted, guesses, levels }) {
  if (!(emitted >= 1)) return "Fewer than 1 token per target pass? Each pass brings the target's own, so 1 is the least.";
  if (!(guesses >= 1 && levels >= 0)) return "A pass checks at least 1 guess, in levels from 0 on: enter both.";
  if (guesses < levels) return `${guesses} guesses in ${levels} levels? Each level has at least one.`;
  const most = 1 + (levels || guesses);
  return emitted > most ? `${emitted} tokens per target pass? ${levels ? `${levels} levels` : `${guesses} guesses`} and the target's own bring ${most} at most.` : "";
}

// --- a race file ----------------------------------------------------------------------------------

export const MAX_RACE = 20_000_000; // characters

// Sets of trees { name, steps } of a race file, the costs that it holds or null, and the name of its pair. Throws one line.
export function readRace(document) {
  const races = Array.isArray(document.dialogue) ? document.dialogue : [document];
  const frames = (read) => {
    const traces = races.map(read).filter(Boolean);
    return traces.flatMap((trace, turn) => framesOf(trace).slice(turn ? 1 : 0)); // one prefill, of the first turn
  };
  const alone = frames((race) => race?.target_only);
  const sets = [["my race file", (race) => race?.speculative], ["A of my file", (race) => race?.a?.trace], ["B of my file", (race) => race?.b?.trace]]
    .map(([name, read]) => ({ name, frames: frames(read) }))
    .filter((set) => set.frames.some(({ nodes }) => nodes?.verdict));
  if (!sets.length) throw new Error("it is a race file, but nothing was drafted in it");
  const costs = alone.length ? measured(alone, sets[0].frames) : null;
  return { costs, sets: sets.map((set) => ({ name: set.name, steps: stepsOf(set.frames) })), pair: String(traceOf(races[0])?.setting?.pair ?? "").slice(0, 80) };
}

const traceOf = (race) => race?.speculative ?? race?.b?.trace;

// A trace's prefill and steps as frames have them.
function framesOf({ prefill, steps }) {
  const list = (value) => (Array.isArray(value) ? value : refuse());
  const seconds = (value) => (Number.isFinite(value) && value >= 0 && value < 1e6 ? value : refuse());
  const whole = (value) => (Number.isInteger(value) ? value : refuse());
  const first = ["vision", "target", "draft"].reduce((sum, part) => sum + seconds(prefill?.[`${part}_seconds`] ?? 0), 0);
  return [{ kind: "prefill", seconds: first }, ...list(steps).map((step) => {
    const parent = list(step?.tree?.parents).map(whole);
    if (list(step.tree.entropies).length !== parent.length || !list(step.emitted).length || parent.some((above, node) => above >= node)) refuse();
    return { kind: "step", tokens: step.emitted, seconds: ["draft", "verify", "keep"].map((part) => seconds(step.seconds?.[part] ?? step.seconds?.rest)),
      nodes: { parent, entropy: step.tree.entropies, verdict: "a".repeat(parent.length - 1) } };
  })];
}

function refuse() {
  throw new Error("a step of it has no tree, tokens and seconds as race files have them");
}

// --- a report of `bench --json` -------------------------------------------------------------------

const MAX_REPORT = 200_000; // characters

// Costs and, lane by lane, the mean step: costs are straight lines, so it is worth what its steps are. Throws one line.
export function readBench(document) {
  const lanes = entriesOf(document?.lanes);
  const rows = new Map(lanes.map(([name, lane]) => [name, (key) => numberOf(lane, key, name)]));
  const plain = rows.get("target-only");
  if (!plain) throw new Error("it has no lane target-only, so it is no report of bench --json");
  const one = plain("ms_per_token");
  const ours = lanes.filter(([name]) => name !== "target-only" && !name.startsWith("transformers"));
  const rules = ours.filter(([, lane]) => lane.levels !== undefined).map(([name]) => {
    const read = rows.get(name);
    const step = { levels: read("levels"), guesses: read("guesses"), emitted: read("tau"), drafted: read("ms_draft") };
    return { name, steps: [{ ...step, rest: step.emitted * read("ms_per_token") - step.drafted }] };
  });
  const steps = rules.flatMap((rule) => rule.steps).filter((step) => step.levels > 0 && step.guesses > 0);
  const drafting = ours.filter(([name]) => name !== "prompt-lookup").map(([name]) => rows.get(name)("ms_prefill"));
  const reading = plain("ms_prefill");
  const known = {
    one, reading, tokens: plain("tokens") / plain("runs"),
    ...(drafting.length && { drafting: Math.max(0, Math.min(...drafting) - reading) }),
    ...(steps.length && pooled(steps, one)),
  };
  return { costs: known, rules: steps.length ? rules.map(({ name, steps: own }) => ({ name, help: "", steps: own })) : [] };
}

// The mean step of counts that `specllava trace import --json` wrote: costs are straight lines, so it is worth what its
// steps are. Throws one line.
export function readCounts({ metrics, levels }) {
  const read = (key) => numberOf(metrics.speculative_decoding, key, "the log");
  const step = { levels: numberOf({ levels }, "levels", "the log"), guesses: read("num_draft_tokens") / read("num_spec_steps"), emitted: read("mean_acceptance_length") };
  if (!Number.isFinite(step.guesses) || step.emitted < 1) throw new Error("its counts have no step");
  return { costs: null, sets: [{ name: "my serving log", steps: [step] }], pair: "" };
}

// Reads a report, a race file or counts, whichever it is: { bench } or { race }. Throws one line.
export function readFile(text) {
  const bounded = (most) => {
    if (text.length > most) throw new Error(`it has ${text.length.toLocaleString("en")} characters, and at most ${most.toLocaleString("en")} are read`);
  };
  bounded(MAX_RACE);
  const document = parsed(text);
  if (["speculative", "target_only", "a", "dialogue"].some((key) => document?.[key])) return { race: readRace(document) };
  if (document?.metrics?.speculative_decoding) return { race: readCounts(document) };
  bounded(MAX_REPORT);
  return { bench: readBench(document) };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
}

function entriesOf(lanes) {
  if (typeof lanes !== "object" || lanes === null || Array.isArray(lanes)) throw new Error("it has no lanes, so it is no report of bench --json");
  const entries = Object.entries(lanes);
  if (entries.length > 32) throw new Error(`it has ${entries.length} lanes, and at most 32 are read`);
  if (entries.some(([name]) => name.length > 80)) throw new Error("the name of a lane is longer than 80 characters");
  return entries;
}

function numberOf(lane, key, name) {
  const value = lane?.[key];
  if (!(typeof value === "number" && value >= 0 && value < 1e9)) throw new Error(`${key} of ${name} is no number from 0 to 1e9`);
  return value;
}
