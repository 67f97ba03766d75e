// Sampling as verifiers do it, in numbers alone. Distributions are lists of probabilities that add up to one.

const sum = (values) => values.reduce((total, value) => total + value, 0);

// A seeded source of numbers from 0 up to, but not including, 1 (mulberry32).
export function createRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296;
  };
}

// What the target wants beyond the draft's offer, scaled to one: (p − q)₊.
export function residual(p, q) {
  const rest = p.map((own, place) => Math.max(own - q[place], 0));
  const mass = sum(rest);
  return mass > 0 ? rest.map((value) => value / mass) : p;
}

function drawFrom(probs, random) {
  let left = random() * sum(probs);
  const place = probs.findIndex((prob) => (left -= prob) < 0);
  return place < 0 ? probs.findLastIndex((prob) => prob > 0) : place;
}

// A guess from q, kept with min(1, p / q); once it is refused, a draw from `instead`: the residual, or, wrongly, p.
export function judge(p, q, instead, random) {
  const guess = drawFrom(q, random);
  return random() * q[guess] < p[guess] ? guess : drawFrom(instead, random);
}

// Guesses that were chosen: the target's own draw counts. Wrongly, a draw that is in no branch is discarded once.
export function own(p, guessed, again, random) {
  const drawn = drawFrom(p, random);
  return again && !guessed[drawn] ? drawFrom(p, random) : drawn;
}

// The distributions that both wrong ways tend to.
export function redrawnFromTarget(p, q) {
  const refused = 1 - sum(p.map((mine, place) => Math.min(mine, q[place])));
  return p.map((mine, place) => Math.min(mine, q[place]) + refused * mine);
}

export function drawnAgain(p, guessed) {
  const missed = sum(p.filter((_, place) => !guessed[place]));
  return p.map((mine, place) => (guessed[place] ? mine : 0) + missed * mine);
}

// Half the sum of differences: the share of draws that would have to fall elsewhere.
export function totalVariation(left, right) {
  return sum(left.map((value, place) => Math.abs(value - right[place]))) / 2;
}
