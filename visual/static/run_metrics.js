// What a run was worth, as specllava/metrics.py and progress.py count it: totals, ratios, and how far two lanes agree.

import { judgedNodes, savedTokens } from "./trace_model.js";

const NEAR_TIE = 1e-4; // a float32 near-tie within this margin may flip
const CLOCK_ERROR = 1e-9; // seconds that sums of the same steps may differ by

const ratio = (numerator, denominator) => (denominator ? numerator / denominator : NaN);

// Totals of a lane, which steps are added to one by one.
export class Totals {
  constructor(trace) {
    Object.assign(this, { tokens: 1, passes: 0, drafted: 0, accepted: 0, decoding: 0, reading: trace.reading, drafting: 0, checking: 0, saved: 0 });
  }

  add(step) {
    this.tokens += step.emitted.length;
    this.passes += 1;
    this.drafted += step.drafted;
    this.accepted += step.emittedNodes.length;
    this.decoding += step.total;
    this.drafting += step.seconds.draft;
    this.checking += step.seconds.verify;
    this.saved += savedTokens(step);
    return this;
  }

  get stepTokens() { return this.tokens - 1; }
  get tau() { return ratio(this.stepTokens, this.passes); }
  get secondsPerToken() { return ratio(this.decoding, this.stepTokens); }
  get tokensPerSecond() { return ratio(this.stepTokens, this.decoding); }
  get secondsPerTokenInAll() { return ratio(this.decoding + this.reading, this.tokens); }
  get secondsPerPass() { return ratio(this.checking, this.passes); }
}

export const totalsOf = (trace) => trace.steps.reduce((totals, step) => totals.add(step), new Totals(trace));
export const speedup = (reference, candidate) => ratio(reference.secondsPerToken, candidate.secondsPerToken);
export const speedupInAll = (reference, candidate) => ratio(reference.secondsPerTokenInAll, candidate.secondsPerTokenInAll);
export const passRatio = (reference, candidate) => ratio(candidate.secondsPerPass, reference.secondsPerPass);

// Whether two lanes said the same; `margin` is the reference's at the first difference.
export function compare(reference, ids) {
  const shared = Math.min(reference.ids.length, ids.length);
  const parted = reference.ids.slice(0, shared).findIndex((id, at) => id !== ids[at]);
  if (parted >= 0) return { identical: false, tokens: shared, position: parted, margin: marginAt(reference, parted) };
  const identical = reference.ids.length === ids.length;
  return { identical, tokens: shared, position: identical ? null : shared, margin: null };
}

export const isNearTie = ({ margin }) => margin !== null && margin <= NEAR_TIE;

function marginAt(trace, position) {
  if (position === 0) return trace.prefill.first_margin;
  let seen = 1;
  for (const step of trace.steps) {
    if (position < seen + step.emitted.length) return step.view.margins[step.path[position - seen]];
    seen += step.emitted.length;
  }
  return null;
}

// A lane at a moment of its own clock, which includes the prefill.
export class LaneProgress {
  constructor(trace) {
    Object.assign(this, { trace, totals: new Totals(trace), ids: [trace.prefill.first_token] });
  }

  advance(seconds) {
    for (const step of this.trace.steps.slice(this.totals.passes)) {
      if (this.totals.reading + this.totals.decoding + step.total > seconds + CLOCK_ERROR) break;
      this.totals.add(step);
      this.ids.push(...step.emitted);
    }
  }
}

// Two lanes at the same moment of their own clocks, and how far they have said the same.
export class RaceProgress {
  constructor(reference, candidate) {
    Object.assign(this, { reference: new LaneProgress(reference), candidate: new LaneProgress(candidate) });
    this.comparison = { identical: true, tokens: 0, position: null, margin: null };
  }

  advance(seconds) {
    this.reference.advance(seconds);
    this.candidate.advance(seconds);
    if (this.comparison.margin !== null) return; // they have parted
    const [ours, theirs] = [this.reference.ids, this.candidate.ids];
    const shared = Math.min(ours.length, theirs.length);
    let same = this.comparison.tokens;
    while (same < shared && ours[same] === theirs[same]) same++;
    const identical = ours.length === theirs.length;
    this.comparison = same < shared ? compare(this.reference.trace, this.candidate.trace.ids)
      : { identical, tokens: same, position: identical ? null : same, margin: null };
  }
}

// [accepted, tested] by depth from 1, and by rank from 0, in ascending order.
export function acceptance(trace) {
  const depths = new Map();
  const ranks = new Map();
  const add = (counts, key, hit) => {
    const [hits, tests] = counts.get(key) ?? [0, 0];
    counts.set(key, [hits + hit, tests + 1]);
  };
  for (const step of trace.steps) {
    const taken = new Set(step.emittedNodes);
    for (const { position, children, outcome } of judgedNodes(step)) {
      add(depths, position + 1, Number(outcome !== "missed"));
      for (const child of children) add(ranks, step.ranks[child], Number(taken.has(child)));
    }
  }
  const sorted = (counts) => [...counts].sort(([one], [other]) => one - other);
  return { depths: sorted(depths), ranks: sorted(ranks) };
}

// Tested guesses by the draft's probability, in `bins` equal steps from 0 to 1, those with none left out.
export function reliability(trace, bins) {
  const found = Array.from({ length: bins }, () => ({ tested: 0, accepted: 0, promised: 0 }));
  for (const step of trace.steps) {
    const taken = new Set(step.emittedNodes);
    for (const child of judgedNodes(step).flatMap(({ children }) => children)) {
      const q = Math.exp(step.log_probs[child]);
      const bin = found[Math.min(Math.floor(q * bins), bins - 1)];
      bin.tested += 1;
      bin.accepted += Number(taken.has(child));
      bin.promised += q;
    }
  }
  return found.filter(({ tested }) => tested);
}
