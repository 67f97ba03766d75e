// What of a race file can be drawn in about a second: the bounds of visual/player/bounds.py, held in the browser.

import { letters } from "./python_text.js";

const LARGEST = 1e18; // that is written out

const total = (numbers) => numbers.reduce((sum, number) => sum + number, 0);
const most = (numbers) => numbers.reduce((one, other) => Math.max(one, other), 0);
const lengthOf = (text) => letters(text).length;

// Refuses a well-formed lane that holds more than can be drawn, in one line that begins with its name.
export function checkLane(lane, trace, bounds) {
  const { pair, device, dtype } = trace.setting;
  const seconds = trace.reading + total(trace.steps.map((step) => step.total));
  checkSteps(lane, trace.steps, bounds);
  check(lane, [
    ["tokens in one draw", most(trace.steps.flatMap(({ draws }) => draws.map(({ tokens }) => tokens.length))), bounds.MAX_DRAW_TOKENS],
    ["nodes in one tree", most(trace.steps.map(({ tokens }) => tokens.length)), bounds.MAX_TREE],
    ["characters of prompt", lengthOf(trace.prompt), bounds.MAX_PROMPT_CHARACTERS],
    ["characters in one token", most(Object.values(trace.texts).map(lengthOf)), bounds.MAX_TOKEN_CHARACTERS],
    ["characters of answer", total(trace.ids.map((id) => lengthOf(trace.texts[id]))), bounds.MAX_ANSWER_CHARACTERS],
    ["characters in a name", most([pair, device, dtype].map(lengthOf)), bounds.MAX_NAME_CHARACTERS],
    ["seconds", seconds, bounds.MAX_SECONDS],
  ]);
  trace.steps.forEach((step, at) => {
    if (!step.view) throw new Error(`${lane}, step ${at + 1}: it did not record what the target thought of every node`);
    const guesses = [...step.log_probs, ...step.pruned.map(({ log_prob: one }) => one)];
    const entropies = step.entropies.filter((one) => one !== null);
    for (const [what, values, [low, high]] of [["a log-probability", guesses, bounds.LOG_PROBS], ["an entropy", entropies, bounds.ENTROPIES]]) {
      const odd = values.find((value) => value < low || value > high);
      if (odd !== undefined) throw new Error(`${lane}, step ${at + 1}: ${what} of ${odd} is ${odd > high ? `above ${Math.round(high)}` : `below ${Math.round(low)}`}`);
    }
  });
}

// Refuses more steps than can be drawn, of one lane or of all turns of a dialogue.
export function checkSteps(whose, steps, bounds) {
  check(whose, [
    ["steps", steps.length, bounds.MAX_STEPS],
    ["tree nodes", total(steps.map(({ tokens }) => tokens.length)), bounds.MAX_NODES],
    ["pruned guesses", total(steps.map(({ pruned }) => pruned.length)), bounds.MAX_PRUNED],
    ["draws", total(steps.map(({ draws }) => draws.length)), bounds.MAX_DRAWS],
  ]);
}

function check(whose, sizes) {
  for (const [what, count, bound] of sizes) {
    if (!(count <= bound)) throw new Error(`${whose} has ${Math.min(count, LARGEST).toLocaleString("en")} ${what}, and at most ${bound.toLocaleString("en")} can be shown`);
  }
}
