// Tosses in the browser with the probabilities of one decision: what a verifier says in the long run, beside a wrong one.
// A simulation with these numbers alone; no model takes part.

const TOSSES = 2000;
const LASTS = 1600; // milliseconds
const NAMES = {
  judged: ["redraws from (p − q)₊, as here", "redraws from p, which is wrong"],
  own: ["keeps the target's draw, as here", "draws again if no branch has it, which is wrong"],
};

export function createToss({ createRandom, judge, own, residual, redrawnFromTarget, drawnAgain, totalVariation }) {
  const element = styled("div", "coin-toss");
  const [start, again] = [button(`Toss ${TOSSES.toLocaleString("en")} times`, () => toss()), button("Another seed", () => toss((seed += 1)))];
  const [buttons, charts, said] = [styled("div", "coin-bar"), styled("div", "coin-charts"), styled("p", "coin-result")];
  let seed = 1;
  let lanes = [];
  let running = 0; // number of the newest toss, which ends those before it

  said.setAttribute("role", "status");
  buttons.append(start, again);
  element.append(buttons, charts, said);

  // `rows` are words with p, q and whether they are in the tree; `judged`: a guess drawn from q was judged.
  function lay(rows, judged) {
    running += 1;
    const [p, q, guessed] = [rows.map((row) => row.p), rows.map((row) => row.q), rows.map((row) => row.guessed)];
    const rest = residual(p, q);
    const ways = judged
      ? [(random) => judge(p, q, rest, random), (random) => judge(p, q, p, random)]
      : [(random) => own(p, guessed, false, random), (random) => own(p, guessed, true, random)];
    const limits = [p, judged ? redrawnFromTarget(p, q) : drawnAgain(p, guessed)];
    lanes = ways.map((way, place) => ({ way, p, limit: limits[place], counts: p.map(() => 0), ...chartOf(rows, NAMES[judged ? "judged" : "own"][place]) }));
    charts.replaceChildren(...lanes.map((lane) => lane.chart));
    charts.hidden = again.hidden = true;
    said.textContent = "";
  }

  function toss() {
    const mine = (running += 1);
    const sources = lanes.map((_, place) => createRandom(2 * seed + place));
    for (const lane of lanes) lane.counts.fill(0);
    charts.hidden = again.hidden = false;
    said.textContent = "";
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const began = performance.now();
    let done = 0;
    const tick = (now) => {
      if (mine !== running) return;
      const upTo = calm ? TOSSES : Math.min(TOSSES, Math.ceil((Math.max(0, now - began) / LASTS) * TOSSES));
      for (; done < upTo; done += 1) lanes.forEach(({ way, counts }, place) => (counts[way(sources[place])] += 1));
      if (done) lanes.forEach((lane) => fill(lane, done));
      if (done < TOSSES) requestAnimationFrame(tick);
      else conclude();
    };
    tick(began);
  }

  function fill({ counts, fills, off, p, top }, done) {
    const shares = counts.map((count) => count / done);
    fills.forEach((bar, place) => (bar.style.height = `${(100 * shares[place]) / top}%`));
    off.textContent = `off by ${totalVariation(shares, p).toFixed(3)}`;
  }

  function conclude() {
    const [right, wrong] = lanes.map(({ counts, p }) => totalVariation(counts.map((count) => count / TOSSES), p).toFixed(3));
    const limit = totalVariation(lanes[1].limit, lanes[1].p);
    const never = limit > 0.0005 ? `the wrong one ${wrong}, and however often one tosses it stays off by ${limit.toFixed(3)}` : `and so is the other, ${wrong}: with these numbers it has nothing to get wrong`;
    said.textContent = `After ${TOSSES.toLocaleString("en")} tosses (seed ${seed}) the histogram on the left is off the target's p by ${right} (total variation), which is chance and shrinks with more; ${never}.`;
  }

  return { element, lay };
}

// Columns over the words; a line across each column is the target's p.
function chartOf(rows, name) {
  const [chart, columns, off] = [styled("figure", "coin-chart"), styled("div", "coin-columns"), styled("b", "coin-off")];
  const top = 1.3 * Math.max(...rows.map((row) => row.p)); // the height of a column
  const fills = rows.map(({ word, p }) => {
    const [column, box, bar, mark] = [styled("div", "coin-column"), styled("div", "coin-box"), styled("i", "coin-share"), styled("i", "coin-mark")];
    mark.style.bottom = `calc(${(100 * p) / top}% - 2px)`;
    box.append(bar, mark);
    column.append(box, styled("span", "", word));
    columns.append(column);
    return bar;
  });
  columns.setAttribute("aria-hidden", "true");
  const caption = styled("figcaption", "", `A verifier that ${name}: `);
  caption.append(off);
  chart.append(caption, columns);
  return { chart, fills, off, top };
}

function button(text, act) {
  const made = Object.assign(styled("button", "quiet", text), { type: "button" });
  made.addEventListener("click", act);
  return made;
}

function styled(tag, className, text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
