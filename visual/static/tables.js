// The nodes of a run as a table, and a table as CSV. Model text is a cell that no spreadsheet computes; the same rule in
// Python is specllava/findings/comparison_tables.py.

const FORMULA = /^[\s\x1c-\x1f\x85]*[=+\-@＝＋－＠]|^[\t\r\n]/u;
const VERDICTS = { o: "root", a: "accepted", r: "rejected", u: "never reached", n: "the target's own", p: "pruned" };
const NODE = ["step", "node", "parent", "depth", "token", "token_id", "verdict", "entropy_nats", "draft_probability", "target_probability", "draft_rank", "target_rank", "target_choice", "why"];

// A text that a spreadsheet would compute begins with an apostrophe.
export const inert = (cell) => (typeof cell === "string" && FORMULA.test(cell) ? `'${cell}` : cell ?? "");

export const csvOf = ({ columns, rows }) => [columns, ...rows].map((cells) => `${cells.map((cell) => quoted(String(inert(cell)))).join(",")}\n`).join("");

const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

// `steps` are frames of the lane that is drawn, unpacked; `trace` is of the race file, with all digits, or null.
export function nodesTable(steps, trace) {
  const rows = steps.flatMap(({ nodes }, place) => {
    const depths = depthsOf(nodes.parent);
    const exact = trace ? exactOf(trace.steps[place]) : {};
    const read = (name, node) => nodes[name]?.[node] ?? null; // older saved pages lack a column
    const known = (name, node) => (Number.isFinite(exact[name]?.[node]) ? exact[name][node] : read(name, node));
    return nodes.label.flatMap((label, node) => (nodes.verdict[node] === "-" ? [] : [[
      place + 1, node, nodes.parent[node] < 0 ? null : nodes.parent[node], depths[node], label.trim(), nodes.token[node], VERDICTS[nodes.verdict[node]],
      known("entropy", node), known("draft", node), known("target", node), read("rank", node), read("target_rank", node), read("choice", node),
      nodes.reasons[read("reason", node)] ?? null,
    ]]));
  });
  return { columns: NODE, rows };
}

// The trace of a race file whose steps are these; null where there is none.
export function traceOf(race, steps) {
  const traces = [race, ...(race?.dialogue ?? [])].map((one) => one?.speculative);
  const same = (trace) => trace?.steps?.length === steps.length && trace.steps.every(({ emitted }, place) => String(emitted) === String(steps[place].ids));
  return traces.find(same) ?? null;
}

// The numbers of a step of a trace, by the nodes' ids: the tree, the target's own token, the pruned guesses.
function exactOf({ tree, target, pruned }) {
  const size = tree.tokens.length;
  const [draft, seen] = [tree.log_probs.map(Math.exp), [...(target?.token_probs ?? [])]];
  draft[0] = seen[0] = NaN; // of the root nobody guessed
  (pruned ?? []).forEach((guess, place) => (draft[size + 1 + place] = Math.exp(guess.log_prob)));
  return { entropy: tree.entropies, draft, target: seen };
}

function depthsOf(parents) {
  const depths = [];
  parents.forEach((parent, node) => depths.push(parent < 0 ? 0 : depths[parent] + 1));
  return depths;
}
