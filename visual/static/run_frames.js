// Frames of a race file, made in the browser: what visual/player/frames.py, turns.py and race_frames.py make on a server.

import { packed } from "./files.js";
import { newId } from "./site_frames.js";
import { leadOf } from "./race_reading.js";
import { chartsOf } from "./run_charts.js";
import { headline, ofOne, ofRace, runNumbers } from "./run_headline.js";
import { LaneProgress, RaceProgress, totalsOf } from "./run_metrics.js";
import { settingsSummary } from "./run_settings.js";
import { drawsOf, nodeCards } from "./step_cards.js";
import { stepSentence } from "./step_words.js";
import { judgedNodes, savedTokens } from "./trace_model.js";
import { ceilingOf, rowsWithPruned, treeDrawing } from "./tree_drawing.js";
import { layoutOf } from "./tree_layout.js";
import { oneSpace, rounded, shortened, withoutBidi } from "./python_text.js";

const ALONE = "target-only";
const TOGETHER = "speculative";
const SPEEDS = [1, 0.5, 0.2, 0.1, 0.05, 0.02];
const WATCHABLE = 0.09; // seconds that one target step should last on the screen
const SHOWN = 120; // characters of a question or an answer in the list of turns
const ABSENT = {
  [ALONE]: "This run has no target-only lane, so there is nothing to compare it with.",
  [TOGETHER]: "Speculation is off in this run: the target spoke alone.",
};

// Makes the frames of the turns that race_reading.js returns: of a dialogue the last turn's, with the others in its end; of
// two sides B's, with A's in the first of them. `pictures` are data addresses by the names that the turns give.
export async function raceFrames(turns, source, look, pictures = {}) {
  const shown = picturesOf(turns, pictures);
  const id = newId();
  const [{ a, b }] = turns;
  if (a) return beside(turns[0], source, look, shown[0]);
  const rows = turns.map((turn) => rowOf(turn, Boolean(turn.image)));
  const files = turns.map(({ raw }, turn) => JSON.stringify({ ...raw, image: turns[turn].image ?? undefined }));
  const lists = await Promise.all(turns.map(async (turn, number) => {
    const file = turns.length === 1 ? files[0] : `{"dialogue":[${files.join(",")}]}`;
    const own = rowOf(turn, leadOf(turn).image !== null && (turns.length === 1 || Boolean(turn.image)));
    const place = { dialogue: id, turn: number, before: rows.slice(0, number), rows: rows.with(number, own), file: number === turns.length - 1 ? await packed(file) : null };
    return framesOf(turn.target_only, turn.speculative, { source, look, picture: shown[number], place });
  }));
  if (turns.length === 1) return lists[0];
  const list = lists.pop();
  const held = Object.fromEntries(lists.entries());
  return [...list.slice(0, -1), JSON.stringify({ ...JSON.parse(list.at(-1)), held })];
}

// The picture that each turn is about: the last that came until then.
function picturesOf(turns, pictures) {
  let last = null;
  return turns.map(({ image }) => (last = image ? (pictures[image] ?? null) : last));
}

async function beside({ a, b, target_only: alone, raw }, source, look, picture) {
  const lanes = ({ trace }) => (trace.drafter === null && trace.config.drafter === "none" ? [trace, null] : [alone, trace]);
  const [pinned, list] = await Promise.all([[a, null], [b, picture]].map(async ([side, shown]) => {
    const [target, speculative] = lanes(side);
    const own = { target_only: target?.raw, speculative: speculative?.raw };
    const file = side === a ? own : raw;
    const place = { dialogue: newId(), turn: 0, before: [], rows: [rowOf({ speculative: side.trace }, side.trace.image !== null)], file: await packed(JSON.stringify(file)) };
    return framesOf(target, speculative, { source, look, picture: shown, place });
  }));
  const run = { ...JSON.parse(list[0]), against: await packed(`[${pinned}]`), a_name: a.name, b_name: b.name };
  return [JSON.stringify(run), ...list.slice(1)];
}

// What the list of turns says of one; `picture`: one came with its question.
function rowOf(turn, picture) {
  const lead = leadOf(turn);
  const { tau } = totalsOf(lead);
  const { reused_tokens: reused, prompt_tokens } = lead.prefill;
  return { question: line(lead.prompt), answer: line(lead.text), tau: Number.isNaN(tau) ? null : rounded(tau, 2), reused, prompt_tokens, picture };
}

const line = (text) => shortened(oneSpace(withoutBidi(text)), SHOWN);

async function framesOf(alone, together, { source, look, picture, place }) {
  const lanes = [[ALONE, alone], [TOGETHER, together]].filter(([, trace]) => trace);
  const [leadLane, lead] = lanes.at(-1);
  const opening = { source, live: false, picture, example: null, lesson: null, dialogue: place.dialogue, turn: place.turn, turns: place.before };
  const stopped = lanes.some(([, trace]) => trace.finish_reason === "stopped");
  const frames = [runFrame(lanes, lead, leadLane, opening, look), ...lanes.map(([lane, trace]) => prefillFrame(lane, trace))];
  for (const [lane, trace] of lanes) {
    if (lane === leadLane) frames.push(...(await leadSteps(alone, together, lane, trace, look)));
    else frames.push(...trace.steps.map((step) => ({ kind: "step", lane, seconds: secondsOf(step), tokens: words(trace, step.emitted, acceptedIn(lane, step)) })));
  }
  frames.push({
    kind: "end", ending: stopped ? "stopped" : "finished",
    totals: alone && together ? headline(alone, together, !stopped) : ofOne(totalsOf(lead), leadLane),
    show: instructiveStep(lead), image: lead.image, charts: chartsOf(alone, together, look), numbers: runNumbers(alone, lead), turns: place.rows, file: place.file,
  });
  return frames.map((frame) => JSON.stringify(frame));
}

function runFrame(lanes, lead, led, opening, look) {
  const { config, setting } = lead;
  const byEntropy = config.drafter === "model" && lead.drafter === null && lead.ruleName === "entropy";
  const missing = Object.entries(ABSENT).filter(([lane]) => !lanes.some(([name]) => name === lane));
  return {
    kind: "run", id: newId(), ...opening, prompt: withoutBidi(lead.prompt), led, absent: Object.fromEntries(missing),
    setting: withoutBidi(`${setting.pair} · ${setting.device} · ${setting.dtype}`), settings: withoutBidi(settingsSummary(lead, look)),
    speed: speedOf(lanes[0][1]), threshold: byEntropy ? config.entropy_threshold : null, ceiling: ceilingOf(lead), sampled: samplingOf(lead),
  };
}

const prefillFrame = (lane, trace) => ({
  kind: "prefill", lane, seconds: trace.reading, tokens: words(trace, [trace.prefill.first_token], lane === TOGETHER ? 0 : null), ids: [trace.prefill.first_token],
  prompt_tokens: trace.prefill.prompt_tokens, reused_tokens: trace.prefill.reused_tokens,
});

const secondsOf = ({ seconds: { draft, verify, rest } }) => [draft, verify, rest];
const acceptedIn = (lane, step) => (lane === TOGETHER ? step.accepted.length : null);

function leadSteps(alone, together, lane, trace, look) {
  const race = alone && together ? new RaceProgress(alone, together) : null;
  const own = new LaneProgress(trace);
  let clock = trace.reading;
  let cached = trace.prefill.prompt_tokens;
  return Promise.all(trace.steps.map(async (step) => {
    clock += step.total;
    (race ?? own).advance(clock);
    const totals = race ? ofRace(race.reference.totals, race.candidate.totals, race.comparison, together, false) : ofOne(own.totals, lane);
    const doubt = step.path.slice(0, step.emitted.length).map((node) => step.entropies[node]).map((nats) => (nats === null ? null : rounded(nats, 3)));
    const marks = judgedNodes(step).filter(({ children }) => children.length > 1).map(({ outcome, position }) => [outcome === "saved" ? "saved" : "branched", position]);
    const frame = { kind: "step", lane, seconds: secondsOf(step), tokens: words(trace, step.emitted, acceptedIn(lane, step)), ids: step.emitted, totals, doubt, marks, cached };
    cached += step.path.length;
    return { ...frame, picture: await packed(JSON.stringify(pictureOf(trace, step, look))) };
  }));
}

function pictureOf(trace, step, look) {
  const layout = layoutOf(trace, step, look);
  const drawn = layout.pruned.some((node) => !layout.hidden.has(node));
  return {
    figure: treeDrawing(layout, look), pruned: drawn ? rowsWithPruned(layout, look) : null, say: stepSentence(trace, step), nodes: nodeCards(layout),
    draws: drawsOf(trace, step), focus: focusOf(layout),
  };
}

// The node that decided a step: the end of the answer, the best rejected guess, or the bonus token.
function focusOf({ step, next }) {
  if (step.bonusUnused) return step.path[step.emitted.length];
  return step.likeliest(step.children[step.path.at(-1)])[0] ?? next;
}

// The step to open with: one that another branch saved, long, of a tree that branches.
function instructiveStep({ steps }) {
  const interest = steps.map((step, at) => {
    const branches = step.children.filter((family) => family.length > 1).length;
    const middle = 1 - Math.abs((2 * at) / steps.length - 1);
    return [savedTokens(step) > 0, Math.min(step.accepted.length, 8) + Math.min(branches, 4) + middle];
  });
  const above = ([saved, value], [otherSaved, other]) => (saved === otherSaved ? value > other : saved);
  return interest.reduce((best, one, at) => (above(one, interest[best]) ? at : best), 0);
}

function speedOf(alone) {
  const pace = totalsOf(alone).secondsPerToken;
  return Number.isNaN(pace) ? 1 : (SPEEDS.find((speed) => pace / speed >= WATCHABLE) ?? SPEEDS.at(-1));
}

function samplingOf({ config, exact }) {
  if (config.temperature === 0) return null;
  return exact ? "best" : config.verifier === "traversal" ? "traversal" : "drawn";
}

// [text, source] of each token; `accepted` of them come from the draft, null: there is no draft.
function words(trace, tokens, accepted) {
  return tokens.map((token, position) => {
    const source = accepted === null ? "plain" : position < accepted ? "accepted" : "target";
    return trace.ends.has(token) ? ["", `${source} end`] : [withoutBidi(trace.texts[token]), source];
  });
}
