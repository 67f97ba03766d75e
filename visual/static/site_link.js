// What the query of an address opens, as visual/player/link.py reads it: an example, a turn of it and a step, or a lesson.
// Places count from 0 here and from 1 in an address.

const LONGEST = 40; // characters of a wrong value that a notice repeats

// Returns { example or lesson, turn, step, notice }; null where the query names nothing. `turn` and `step` are null where
// it names none of them.
export function followLink(query, examples, lessons) {
  const number = query.get("lesson");
  if (number !== null && lessons.length) return followLesson(number, query, lessons);
  const name = query.get("example");
  if (name === null || !examples.length) return null;
  const example = examples.find((one) => one.name === name);
  if (!example) {
    const notice = `There is no example ${quoted(name)}; there are ${examples.map((one) => one.name).join(", ")}.`;
    return { example: examples[0], turn: null, step: null, notice };
  }
  const [turn, wrong] = placeOf(query, "turn", example.steps.length);
  const [step, notice] = placeOf(query, "step", example.steps.at(turn ?? -1));
  return { example, turn, step, notice: wrong || notice };
}

function followLesson(number, query, lessons) {
  const known = /^[0-9]{1,4}$/.test(number) && Number(number) >= 1 && Number(number) <= lessons.length;
  const lesson = lessons[known ? Number(number) - 1 : 0];
  const notice = known ? "" : `There is no lesson ${quoted(number)}; there are lessons 1 to ${lessons.length}.`;
  const [step, wrong] = placeOf(query, "step", lesson.steps);
  return { lesson, turn: null, step: step ?? lesson.step, notice: notice || wrong };
}

// A number from 1 to `last` as one from 0, and what is wrong with it.
function placeOf(query, what, last) {
  const given = query.get(what);
  if (given === null) return [null, ""];
  if (!/^-?[0-9]{1,9}$/.test(given)) return [null, `The link asks for ${what} ${quoted(given)}; ${what}s are numbers from 1 to ${last}.`];
  return [Math.min(Math.max(Number(given), 1), last) - 1, ""];
}

const quoted = (text) => `“${[...text].slice(0, LONGEST).join("")}”`;
