// The numbers above a race, as strings: what visual/player/headline.py writes on a server.

import { compare, isNearTie, passRatio, speedup, speedupInAll, totalsOf } from "./run_metrics.js";
import { fixed, scientific } from "./python_text.js";

const DASH = "–";

export const headline = (alone, together, finished) =>
  ofRace(totalsOf(alone), totalsOf(together), compare(alone, together.ids), together, finished);

export function ofRace(reference, candidate, comparison, together, finished) {
  const [same, sameNote, sameState] = sameness(comparison, together, finished);
  const [faster, note, pace] = speedups(reference, candidate, together, finished);
  return {
    speedup: faster, speedup_note: note, speedup_state: pace, ...counts(candidate), instead: `instead of ${candidate.stepTokens}`,
    pass_ratio: passSentence(reference, candidate), same, same_note: sameNote, same_state: sameState,
    "rate_target-only": rate(reference), rate_speculative: rate(candidate),
  };
}

export function ofOne(totals, lane) {
  const nothing = "one lane, nothing to compare";
  return {
    speedup: DASH, speedup_note: nothing, speedup_state: "open", ...counts(totals), instead: "", pass_ratio: "",
    same: DASH, same_note: nothing, same_state: "open", [`rate_${lane}`]: rate(totals),
  };
}

// What a run that is over is compared with another by; null where there is no such number.
export function runNumbers(alone, lead) {
  const totals = totalsOf(lead);
  const gain = !alone || alone === lead ? NaN : speedup(totalsOf(alone), totals);
  const values = { tau: totals.tau, passes: totals.passes, speedup: gain, saved: totals.saved };
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number.isFinite(value) ? value : null]));
}

const rate = ({ tokensPerSecond: value }) => (Number.isFinite(value) ? `${fixed(value, 0)} tokens/s` : DASH);

function counts({ tau, passes, saved }) {
  return {
    tau: Number.isFinite(tau) ? fixed(tau, 1) : DASH, passes: String(passes), saved: String(saved),
    saved_note: `word${saved === 1 ? "" : "s"} saved by another branch`,
  };
}

// The speed-up while answering, a note with the one in all, and which way the first points.
function speedups(reference, candidate, together, finished) {
  const answering = speedup(reference, candidate);
  const [shown, word, state] = paceOf(answering);
  if (Number.isNaN(answering)) return [shown, "faster than the target alone", state];
  let note = `${word} while answering`;
  if (state === "slower") {
    note += `: drafting took ${fixed(1e3 * candidate.drafting, 0)} of ${fixed(1e3 * candidate.decoding, 0)} ms, τ only ${fixed(candidate.tau, 1)}`;
  }
  if (finished) {
    const [ratio, way, whole] = paceOf(speedupInAll(reference, candidate));
    const said = whole === "open" ? way : whole === state && state === "faster" ? ratio : `${ratio} ${way}`;
    note += ` · ${said} in all, with reading the ${together.prefill.vision_seconds ? "picture" : "prompt"}`;
  }
  return [shown, note, state];
}

function paceOf(ratio) {
  if (!(ratio > 0 && ratio < Infinity)) return [DASH, "", "open"];
  const shown = `${fixed(Math.max(ratio, 1 / ratio), 1)}×`;
  if (shown === "1.0×") return [shown, "as fast", "open"];
  const way = ratio > 1 ? "faster" : "slower";
  return [shown, way, way];
}

function passSentence(reference, candidate) {
  const ratio = passRatio(reference, candidate);
  if (Number.isNaN(ratio)) return "";
  const mean = (candidate.drafted + candidate.passes) / candidate.passes;
  return `In this run, checking ${fixed(mean, 0)} tokens at once took ${fixed(ratio, 1)} times as long as saying one.`;
}

function sameness(result, together, finished) {
  const { identical, tokens, position, margin } = result;
  if (!together.exact) return ["drawn by chance", "both lanes have the target's distribution", "open"];
  if (identical && finished) return ["identical ✓", `${tokens} of ${tokens} tokens`, "same"];
  const parted = position !== null && position < tokens;
  if (!parted && !finished) return ["same so far", `${tokens} of ${tokens} tokens`, "open"];
  if (margin === null) return ["one stopped", `the first ${tokens} tokens are the same`, "differs"];
  const kind = isNearTie(result) ? "a near-tie, rounding decides" : "more than rounding";
  return [`differs at ${position + 1} ✗`, `target's margin there ${scientific(margin, 1)}: ${kind}`, "differs"];
}
