// Frames of a recorded race, opened at another turn, step or lesson than the one that they were written with.

// `turn` and `step` count from 0, and null leaves them; `lesson` is what the run is to teach.
export function opened(list, { turn = null, step = null, lesson = null }) {
  const [first, ...rest] = turn === null ? list : turnOf(list, turn);
  const run = { ...JSON.parse(first), id: newId(), lesson };
  const end = JSON.parse(rest.at(-1));
  return [JSON.stringify(run), ...rest.slice(0, -1), JSON.stringify({ ...end, show: step ?? end.show })];
}

// The frames of a turn, with those of the others in its end: of the list, the last turn is on show.
function turnOf(list, turn) {
  const end = JSON.parse(list.at(-1));
  const one = end.held?.[turn];
  if (!one) return list;
  const { held, file, ...own } = end;
  const others = { ...held, [Object.keys(held).length]: [...list.slice(0, -1), JSON.stringify({ ...own, file: null })] };
  delete others[turn];
  return [...one.slice(0, -1), JSON.stringify({ ...JSON.parse(one.at(-1)), file, held: others })];
}

// Tells runs apart, so that the player begins anew.
function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16).padStart(8, "0")).join("");
}
