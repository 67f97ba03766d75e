// Reads race files in the browser, as visual/player/recorded.py reads them on a server: the same schema, the same bounds,
// and what no run can be is refused. `rules` is what Python says of all that, see visual/site/drawing_rules.py.

import { checkLane, checkSteps } from "./race_bounds.js";
import { Trace } from "./trace_model.js";
import { readBySchema } from "./trace_schema.js";
import { printable } from "./python_text.js";

const LANES = ["target_only", "speculative"];
const SIDES = ["a", "b"];
const KEYS = ["image", ...LANES, ...SIDES];

// Returns the turns of a file, one but for a dialogue; each has lanes, or sides `a` and `b` of { name, trace }, its `image`
// by name, `raw`, the document itself, and `filled`, what it left open. Throws an error of one line.
export function readRace(text, rules) {
  const document = parsed(text.replace(/^\ufeff/, ""));
  if (!isObject(document)) throw new Error("it holds no JSON object");
  const turns = "dialogue" in document ? readDialogue(document, rules) : [readOne(document, rules)];
  for (const turn of turns) {
    const lanes = lanesOf(turn);
    if (new Set(lanes.map(([, trace]) => trace.prompt)).size > 1) throw new Error("its lanes answer different prompts");
    for (const [name, trace] of lanes) checkLane(name, trace, rules.bounds);
  }
  checkDialogue(turns, rules);
  turns.forEach((turn, number) => {
    turn.filled = filledIn(lanesOf(turn), turn.raw, rules);
    turn.image ??= number === 0 ? leadOf(turn).image : null;
  });
  return turns;
}

// The lane whose steps are drawn.
export const leadOf = ({ b, speculative, target_only: alone }) => b?.trace ?? speculative ?? alone;

const lanesOf = ({ target_only: alone, speculative, a, b }) =>
  Object.entries({ target_only: alone, speculative, a: a?.trace, b: b?.trace }).filter(([, trace]) => trace);

// Names the options that lanes leave open, and what stands in their place; "" if none. Those that only other rules read do
// not count.
function filledIn(lanes, raw, { schema, rules }) {
  const told = lanes.flatMap(([lane, { config }]) => {
    const said = (raw[lane].trace ?? raw[lane]).config;
    const own = Object.hasOwn(rules, config.rule) ? rules[config.rule].options : null;
    const others = own && "rule" in said ? Object.values(rules).flatMap(({ options }) => options).filter((name) => !own.includes(name)) : [];
    const open = Object.keys(schema.$defs.DecodingConfig.properties).filter((name) => !Object.hasOwn(said, name) && !others.includes(name));
    return open.length ? [`${lane} does not say ${open.map((name) => `${name} (now ${config[name]})`).join(", ")}`] : [];
  });
  return told.length ? `${told.join("; ")}: today's defaults stand in their place` : "";
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is no JSON");
  }
}

function readDialogue(document, rules) {
  const races = document.dialogue;
  if (Object.keys(document).length > 1 || !Array.isArray(races) || !races.every(isObject)) {
    throw new Error('a dialogue is {"dialogue": [race, …]}, and nothing else');
  }
  const most = rules.bounds.MAX_TURNS;
  if (!races.length || races.length > most) throw new Error(`the dialogue has ${races.length} turns, and 1 to ${most} can be shown`);
  return races.map((race, number) => {
    try {
      return readOne(race, rules);
    } catch (refusal) {
      throw new Error(`turn ${number + 1}: ${refusal.message}`);
    }
  });
}

function checkDialogue(turns, { bounds }) {
  if (turns.length < 2) return;
  turns.forEach((turn, number) => {
    if (turn.a) throw new Error(`turn ${number + 1} is a comparison: a turn has a target_only or a speculative lane`);
    const odd = lanesOf(turn).find(([, trace]) => trace.turn !== number);
    if (odd) throw new Error(`turn ${number + 1} was recorded as turn ${odd[1].turn + 1} of its dialogue`);
  });
  for (const lane of LANES) checkSteps(`the dialogue's ${lane}`, turns.flatMap((turn) => turn[lane]?.steps ?? []), bounds);
}

function readOne(raw, rules) {
  if ("steps" in raw || "prefill" in raw) {
    const trace = readTrace(raw, "", rules);
    return trace.config.drafter === "none" ? { target_only: trace, raw: { target_only: raw } } : { speculative: trace, raw: { speculative: raw } };
  }
  const unknown = Object.keys(raw).find((key) => !KEYS.includes(key));
  if (unknown !== undefined) throw new Error(`“${unknown.slice(0, 60)}” is a key that no race file has: known are ${KEYS.join(", ")}`);
  const given = [...LANES, ...SIDES].filter((name) => raw[name] != null);
  const sides = given.filter((name) => SIDES.includes(name));
  if (!given.length) throw new Error("it has neither a target_only nor a speculative lane, nor the sides a and b");
  if (sides.length === 1 || (sides.length && given.includes("speculative"))) {
    throw new Error(`it has ${given.join(", ")}: a comparison has both a and b, and no speculative lane beside them`);
  }
  if (raw.image != null && typeof raw.image !== "string") throw new Error("image: it must be the name of a file");
  const read = (name) => (SIDES.includes(name) ? readSide(raw[name], name, rules) : readTrace(raw[name], name, rules));
  return { ...Object.fromEntries(given.map((name) => [name, read(name)])), image: raw.image, raw };
}

function readSide(side, where, rules) {
  if (!isObject(side) || Object.keys(side).sort().join() !== "name,trace") {
    throw new Error(`${where}: a side of a comparison is {"name": …, "trace": …}, and nothing else`);
  }
  const { name, trace } = side;
  const most = rules.bounds.MAX_NAME_CHARACTERS;
  if (typeof name !== "string" || !name.trim() || name.length > most || ![...name].every(printable)) {
    throw new Error(`${where}.name: it must be 1 to ${most} printable characters of text`);
  }
  return { name, trace: readTrace(trace, `${where}.trace`, rules) };
}

function readTrace(raw, where, rules) {
  const rule = raw?.config?.rule;
  const place = where ? `${where}.` : "";
  if (isObject(raw) && Number.isInteger(raw.schema_version) && raw.schema_version > 1) {
    throw new Error(`${place}schema_version = ${raw.schema_version}: the file is of a newer specllava, and this one reads 1`);
  }
  const own = typeof rule === "string" && !Object.hasOwn(rules.rules, rule); // drawing a tree needs a rule's name alone
  if (own && !(rule.length <= rules.bounds.MAX_NAME && rule && [...rule].every(printable))) throw new Error(`${place}config.rule: a rule's name has 1 to ${rules.bounds.MAX_NAME} printable characters`);
  const stand = own ? { ...raw, config: { ...raw.config, rule: rules.drawable } } : raw;
  const read = readBySchema(rules.schema, stand, where);
  if (own) read.config = { ...read.config, rule };
  checkPossible(read, place);
  return new Trace(read);
}

// Refuses what no run can produce, however well-formed.
function checkPossible(trace, place) {
  trace.steps.forEach((step, number) => {
    const why = oddTree(step.tree) ?? oddStep(step) ?? step.draws.map(oddDraw).find(Boolean);
    if (why) throw new Error(`${place}steps.${number}: ${why}`);
  });
  const nameless = Object.keys(trace.texts).find((id) => !/^[0-9]{1,15}$/.test(id));
  if (nameless !== undefined) throw new Error(`${place}texts: “${nameless.slice(0, 40)}” is no token id`);
  const missing = tokensUsed(trace).find((id) => !Object.hasOwn(trace.texts, id));
  if (missing !== undefined) throw new Error(`${place}texts: the trace has no text for token id ${missing}`);
  const last = trace.steps.at(-1)?.emitted.at(-1) ?? trace.prefill.first_token;
  if (trace.finish_reason === "eos" && !trace.eos_token_ids.includes(last)) {
    throw new Error(`${place}finish_reason = "eos": the last token, ${last}, does not end an answer`);
  }
  if (trace.config.temperature > 0) return;
  trace.steps.forEach(({ tree, verification: { accepted, next_token: bonus }, target }, number) => {
    const said = [...accepted.map((node) => tree.tokens[node]), bonus];
    const odd = target && [0, ...accepted].find((node, at) => target.choices[node] !== said[at]);
    if (target && odd !== undefined) throw new Error(`${place}steps.${number}: without a temperature the target's choice after node ${odd} stands`);
  });
}

function oddTree({ tokens, parents, log_probs: logProbs, entropies }) {
  const lengths = [tokens, parents, logProbs, entropies].map((list) => list.length);
  if (!tokens.length || new Set(lengths).size > 1) return `a tree needs one entry per node in every list: lengths ${lengths.join(", ")}`;
  const odd = parents.findIndex((parent, node) => (node ? parent < 0 || parent >= node : parent !== -1));
  return odd < 0 ? null : `node ${odd} has parent ${parents[odd]}: a parent must come before its child`;
}

function oddStep({ tree, verification: { accepted, next_token: bonus }, emitted, target, pruned, draws }) {
  const nodes = tree.tokens.length;
  const there = (node) => node >= 0 && node < nodes;
  if (target && Object.values(target).some((column) => column.length !== nodes)) return `the target's view must have one entry for each of the ${nodes} nodes`;
  if (accepted.some((node, at) => !(node > 0 && there(node)) || tree.parents[node] !== (accepted[at - 1] ?? 0))) return "accepted nodes are not a branch of the tree";
  if (!pruned.every(({ parent }) => there(parent)) || !draws.every(({ node }) => there(node))) return `a guess or a draw follows none of the ${nodes} nodes`;
  const whole = [...accepted.map((node) => tree.tokens[node]), bonus];
  return emitted.length && emitted.every((token, at) => token === whole[at]) ? null : "emitted is not a beginning of accepted tokens and next token";
}

function oddDraw({ token, tokens, acceptance, draft_prob: draftProb, target_probs: p, draft_probs: q, starts }) {
  const [column, empty] = acceptance === null ? [starts, q] : [q, starts];
  if (empty.length || (acceptance === null) !== (draftProb === null) || [p, column].some((one) => one.length !== tokens.length)) return "a draw must have one probability of each kind for each of its tokens";
  return tokens.includes(token) ? null : `token ${token} is not among those that its draw names`;
}

function tokensUsed({ prefill, given, steps }) {
  return [prefill.first_token, ...given, ...steps.flatMap(({ tree, target, verification, pruned, draws }) => [
    ...tree.tokens, ...(target?.choices ?? []), verification.next_token, ...pruned.map(({ token }) => token), ...draws.flatMap(({ tokens }) => tokens),
  ])];
}
