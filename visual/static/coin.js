// The coin: with a temperature, how the numbers that the verifier drew decided a step, one after the other. Everything
// shown is recorded (specllava/core/trace.py); words enter the page as textContent only.

const SHOWN = 7; // words with bars of their own, the judged one apart
const LEAST = 0.005; // probability that a bar can show
const OLD = "This run did not record what it drew. Run it again, or save it anew with compare --trace, and its draws are here.";
const LEFT = "What the target wants beyond the draft's offer, (p − q)₊ scaled to one, is what the next draw uses. Why not p itself? What the draft offers as often as the target wants it has already been kept: a new draw from p would say it too often.";

export function create(root, { player, step: view, modules }) {
  const [fold, slot] = [root.querySelector(".coin-fold"), root.querySelector(".coin")];
  const panel = styled("div", "coin-panel");
  const say = styled("p", "coin-say");
  const [line, scale, words, why, table] = [styled("div", "coin-line"), styled("p", "coin-scale"), styled("div", "coin-words"), styled("p", "coin-why"), styled("details", "table")];
  const [bar, count] = [styled("div", "coin-bar"), styled("span", "coin-count")];
  const [back, on] = [button("Previous", () => turn(-1)), button("Next decision", () => turn(1))];
  let sampled = null;
  let frame = null;
  let at = 0;

  say.setAttribute("aria-live", "polite");
  line.setAttribute("aria-hidden", "true");
  words.setAttribute("aria-hidden", "true");
  const scroll = Object.assign(styled("div", "table-scroll"), { tabIndex: 0, role: "group", ariaLabel: "Table of the probabilities" });
  table.append(styled("summary", "", "The same probabilities as a table"), scroll);
  bar.append(back, count, on);
  panel.append(say, line, scale, words, why, bar, table);
  fold.append(panel);

  function begin(run) {
    sampled = run.sampled ?? null;
    fold.hidden = !sampled;
    fold.open = Boolean(run.lesson);
    slot.hidden = true;
  }

  function step(next) {
    frame = next;
    at = closest(frame.draws ?? []);
    if (sampled) show();
  }

  // Inside a step, it is beside the tree while guesses are accepted or refused.
  function phase(kind) {
    const inside = Boolean(sampled) && kind === "accept";
    slot.hidden = !inside;
    fold.hidden = !sampled || inside;
    (inside ? slot : fold).append(panel);
  }

  function turn(by) {
    at = Math.min(Math.max(at + by, 0), frame.draws.length - 1);
    player.pause();
    show();
    view.choose(frame.draws[at].child ?? frame.draws[at].node);
  }

  function show() {
    const { draws } = frame;
    const silent = !draws?.length;
    for (const part of [line, scale, words, why, bar, table]) part.hidden = silent;
    if (silent) {
      say.textContent = OLD;
      return;
    }
    const draw = draws[at];
    const judged = draw.acceptance !== null;
    const refused = refusal(draw);
    const rows = rowsOf(draw);
    say.textContent = sentence(draws, at, sampled, frame.nodes.label[draw.node].trim());
    drawLine(draw);
    words.replaceChildren(...header(judged, refused), ...rows.flatMap((row) => barsOf(row, judged, refused)));
    words.dataset.columns = judged ? (refused ? "3" : "2") : "1";
    why.textContent = refused ? LEFT : "";
    why.hidden = !refused;
    count.textContent = `decision ${at + 1} of ${draws.length}`;
    [back.disabled, on.disabled] = [at === 0, at === draws.length - 1];
    scroll.replaceChildren(modules.charts.tableOf(
      ["Word", "Target p", ...(judged ? ["Draft q"] : []), ...(refused ? ["Next draw"] : [])],
      rows.map(({ word, p, q, rest }) => [word, ...[p, ...(judged ? [q] : []), ...(refused ? [rest] : [])].map(number)]),
    ));
  }

  // From 0 to 1: how much keeps the guess, or which word each stretch belongs to; and where u fell.
  function drawLine(draw) {
    const judged = draw.acceptance !== null;
    const parts = judged
      ? [[0, draw.acceptance, "keeps", ""], [draw.acceptance, 1 - draw.acceptance, "refuses", ""]]
      : draw.starts.map((start, place) => [start, draw.p[place], draw.guessed[place] ? "keeps" : "own", draw.words[place]]);
    line.replaceChildren(...parts.filter(([, width]) => width > 0).map(([start, width, kind, text]) => {
      const part = styled("i", `coin-part ${kind}`, width > 0.09 ? text : "");
      part.style.left = `${100 * start}%`;
      part.style.width = `${100 * width}%`;
      return part;
    }));
    const needle = styled("b", "coin-needle", "u");
    needle.style.left = `${100 * draw.uniform}%`;
    line.append(needle);
    scale.textContent = judged
      ? "u falls anywhere from 0 to 1 alike: blue keeps the guess, orange refuses it"
      : "u falls anywhere from 0 to 1 alike: every word has a stretch as long as its p, blue those in the tree";
  }

  return { begin, step, phase };
}

// Whether a guess was judged and turned down.
const refusal = ({ uniform, acceptance }) => acceptance !== null && uniform >= acceptance;

// The decision to begin with: a refusal shows all that there is, then a guess that might have been refused, then a draw of
// the target's own; of several the closest call, of draws that with the least certain outcome. A certain one proves nothing.
function closest(draws) {
  const rank = (draw) => (refusal(draw) ? 0 : draw.acceptance === null ? 2 : draw.acceptance < 1 ? 1 : 3);
  const call = (draw) => (draw.acceptance === null ? Math.max(...draw.p) : Math.abs(draw.uniform - draw.acceptance));
  const order = draws.map((_, place) => place).sort((a, b) => rank(draws[a]) - rank(draws[b]) || call(draws[a]) - call(draws[b]));
  return order[0] ?? 0;
}

// The likeliest words, the judged one among them, and all others as one.
function rowsOf({ words, p, q, place, guessed }) {
  const weight = (i) => Math.max(p[i], q[i] ?? 0);
  const order = words.map((_, i) => i).sort((a, b) => weight(b) - weight(a));
  const kept = order.filter((i, rank) => (rank < SHOWN && weight(i) >= LEAST) || i === place);
  const over = (probs) => Math.max(0, 1 - kept.reduce((total, i) => total + (probs[i] ?? 0), 0));
  const rows = kept.map((i) => ({ word: words[i], p: p[i], q: q[i] ?? 0, chosen: i === place, guessed: guessed[i] }));
  rows.push({ word: "all others", p: over(p), q: q.length ? over(q) : 0, chosen: false, guessed: false });
  const rest = q.length ? residual(rows.map((row) => row.p), rows.map((row) => row.q)) : [];
  return rows.map((row, i) => ({ ...row, rest: rest[i] ?? 0 }));
}

// What the target wants beyond the draft's offer, scaled to one: (p − q)₊.
function residual(p, q) {
  const rest = p.map((own, place) => Math.max(own - q[place], 0));
  const mass = rest.reduce((total, value) => total + value, 0);
  return mass > 0 ? rest.map((value) => value / mass) : p;
}

function sentence(draws, at, sampled, after) {
  const { words, place, p, q, uniform, acceptance, child, node } = draws[at];
  const word = words[place];
  if (acceptance === null) {
    const before = draws[at - 1];
    const from = before?.node === node && refusal(before) ? "draws its own word from what the refusal left" : "draws its own word";
    const fell = `After “${after}” the target ${from}: u = ${number(uniform)} falls on “${word}”`;
    if (sampled !== "best") return `${fell}.`;
    return child === null ? `${fell}, which no branch has: the step ends with it.` : `${fell}, which is in the tree: the branch goes on.`;
  }
  const [drawn, bound] = apart(uniform, acceptance);
  const verdict = refusal(draws[at]) ? `u = ${drawn} ≥ ${bound}: refused.` : `u = ${drawn} < ${bound}: kept.`;
  const odds = `“${word}” after “${after}”: the target gives it p = ${number(p[place])}, the draft q = ${number(q[place])}`;
  return acceptance === 1 ? `${odds}, no more than p, so it is kept for certain. ${verdict}` : `${odds}, so it is kept with probability p / q = ${bound}. ${verdict}`;
}

function header(judged, refused) {
  const names = ["", "target p", ...(judged ? ["draft q"] : []), ...(refused ? ["next draw"] : [])];
  return names.map((name) => styled("span", "coin-head", name));
}

function barsOf({ word, p, q, rest, chosen, guessed }, judged, refused) {
  const name = styled("span", `coin-word${chosen ? " chosen" : ""}${guessed ? " guessed" : ""}`, word);
  const own = barOf("target", p);
  if (refused) {
    const offered = styled("i", "coin-offered"); // the part of p that q covers
    offered.style.width = `${p ? (100 * Math.min(p, q)) / p : 0}%`;
    own.firstChild.firstChild.append(offered);
  }
  return [name, own, ...(judged ? [barOf("draft", q)] : []), ...(refused ? [barOf("rest", rest)] : [])];
}

function barOf(kind, prob) {
  const [cell, track, fill] = [styled("span", "coin-cell"), styled("span", "coin-track"), styled("i", `coin-fill ${kind}`)];
  fill.style.width = `${100 * Math.min(prob, 1)}%`;
  track.append(fill);
  cell.append(track, styled("span", "coin-number", number(prob)));
  return cell;
}

// Two different numbers never look alike.
function apart(left, right) {
  let digits = 2;
  while (digits < 6 && left.toFixed(digits) === right.toFixed(digits)) digits += 1;
  return [left.toFixed(digits), right === 1 ? "1" : right.toFixed(digits)];
}

const number = (value) => value.toFixed(2);

function button(text, act) {
  const made = Object.assign(styled("button", "quiet", text), { type: "button" });
  made.addEventListener("click", act);
  return made;
}

function styled(tag, className, text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
