// The words of both lanes: one text with two cursors. A word that the other lane has written stands pale until this lane
// reaches it, so equal words are in equal lines. Where both have ended, equal words meet; words that differ are marked.
// Model text enters the page as textContent only.

const SENTENCE = /[.!?…]["'”’)\]]*$/; // the answer so far ends one here,
const ABBREVIATION = /(^|\s)(\p{Lu}\p{Ll}?|\d{1,2})\.$/u; // unless it ends like "Mr." or "3."
const WORD = /[\p{L}\p{N}]/u;
const TAIL = 12; // letters by which a sentence's end is known

export function createLanes(root, names) {
  const grid = root.querySelector(".lanes");
  const meeting = grid.querySelector(".meeting");
  const [verdict, note] = meeting.children;
  const lanes = names.map((name) => {
    const article = grid.querySelector(`[data-lane="${name}"]`);
    const find = (part) => article.querySelector(`.${part}`);
    return { name, box: find("words"), text: find("said-text"), before: find("words-before"), cells: [], rest: [], rows: [], starts: [], said: 0, absent: false, cursor: null };
  });
  const other = (lane) => lanes[1 - lanes.indexOf(lane)];
  const whole = root.querySelector(".whole");
  const [guesser, key] = [".guesser", ".word-accepted"].map((part) => grid.querySelector(part));
  const model = [guesser.textContent, key.textContent]; // if no other drafter is named
  let parted = Infinity; // the first place where the lanes have different words
  let met = false; // equal words have met
  let ended = false; // both lanes have, and the run with them
  let visible = null; // number of rows in sight; null: rows have changed since they were read

  whole.addEventListener("click", () => {
    whole.setAttribute("aria-expanded", String(grid.classList.toggle("open")));
    followAnew();
  });
  const resized = new ResizeObserver(followAnew);
  for (const { box } of lanes) resized.observe(box);

  // A lane that does not run says why, instead of its words.
  function reset(run) {
    [parted, met, ended] = [Infinity, false, false];
    grid.classList.remove("met");
    grid.classList.toggle("by-chance", Boolean(run.sampled));
    [guesser.textContent, key.textContent] = run.drafter ? [`With ${run.drafter}`, run.drafter] : model;
    grid.classList.toggle("single", Object.keys(run.absent).length > 0);
    for (const lane of lanes) {
      Object.assign(lane, { cells: [], rest: [], said: 0, absent: lane.name in run.absent, cursor: null });
      lane.text.replaceChildren(...(lane.absent ? [run.absent[lane.name]] : []));
      lane.text.style.removeProperty("transform");
      lane.before.textContent = "";
      lane.box.classList.toggle("absent", lane.absent);
      lane.box.classList.toggle("silent", !lane.absent);
    }
    judge(null);
    followAnew();
  }

  // Adds the tokens of a lane's item, each as `[text, source]`, to both lanes. Returns their elements in its own.
  function add(name, tokens, item) {
    const lane = lanes[names.indexOf(name)];
    visible = null;
    const given = lane.cells.filter(({ own }) => own).length;
    return tokens.map((token, at) => addToken(lane, token, given + at, item));
  }

  function addToken(lane, token, place, item) {
    const there = lane.cells[place];
    if (there && !same(there, token)) {
      parted = place;
      lane.rest = lane.cells.splice(place);
    }
    const cell = lane.cells[place] ?? (lane.cells[place] = write(lane, lane.cells[place - 1], token));
    cell.own = true;
    cell.word.classList.add(...token[1].split(" ").map((source) => `from-${source}`));
    cell.word.dataset.item = item;
    mirror(other(lane), token, place);
    return cell.word;
  }

  function mirror(lane, token, place) {
    if (lane.absent || (place < parted && lane.cells[place])) return;
    if (place < parted) lane.cells[place] = write(lane, lane.cells[place - 1], token);
    else lane.rest.push(write(lane, lane.rest.at(-1) ?? lane.cells[parted - 1], token));
  }

  // How many of its items every lane has said, by name, and the final headline where both are at their ends.
  function show(said, totals) {
    ended = Boolean(totals);
    for (const lane of lanes) lane.said = said[lane.name];
    for (const lane of lanes) paint(lane, other(lane).said);
    for (const { cells, absent } of lanes) cells[parted]?.word.classList.toggle("parted", !absent && Math.min(...lanes.map((one) => one.said)) > parted);
    judge(totals);
    follow();
    meet(totals?.same_state === "same");
  }

  function paint(lane, reached) {
    const past = lane.said > parted;
    lane.cells.forEach((cell, place) => {
      const ahead = place < reached ? "pale" : "later";
      mark(cell, place < lane.said ? "said" : place < parted ? ahead : past ? "later" : "gone");
    });
    lane.rest.forEach((cell, place) => mark(cell, past ? "gone" : parted + place < reached ? "pale" : "later"));
    const last = lane.cells[lane.said - 1]?.word ?? null;
    lane.cursor?.classList.remove("cursor");
    last?.classList.add("cursor");
    lane.cursor = last;
    lane.box.classList.toggle("silent", !last && !lane.absent);
  }

  function mark(cell, state) {
    if (cell.state === state) return;
    if ([cell.state, state].includes("gone")) visible = null;
    cell.state = state;
    cell.slot.hidden = state === "gone";
    cell.slot.ariaHidden = state === "pale" ? "true" : null; // not this lane's words yet
    cell.word.classList.toggle("later", state === "later");
    cell.word.classList.toggle("pale", state === "pale");
  }

  function judge(totals) {
    const both = Math.min(...lanes.map(({ said }) => said));
    const differs = both > parted;
    meeting.setAttribute("aria-live", totals ? "polite" : "off"); // what is so far the same is not read aloud
    meeting.dataset.state = totals?.same_state ?? (differs ? "differs" : "open");
    verdict.textContent = totals?.same ?? (differs ? `differs at ${parted + 1}` : both ? "same so far" : "");
    note.textContent = totals?.same_note ?? (both && !differs ? `${both} token${both === 1 ? "" : "s"} that both have said` : "");
  }

  // Equal words light up from left to right in both lanes: those in sight, each at its share of the way.
  function meet(equal) {
    if (equal === met) return;
    met = equal;
    for (const { box, cells } of lanes) {
      const { top, bottom } = box.getBoundingClientRect();
      const seen = cells.map(({ word }) => word).filter((word) => word.getBoundingClientRect().top < bottom && word.getBoundingClientRect().bottom > top);
      seen.forEach((word, place) => word.style.setProperty("--at", (place / seen.length).toFixed(3)));
    }
    grid.classList.toggle("met", equal);
  }

  // --- which lines are in sight -----------------------------------------------------------------

  // From the start of a sentence where there is one: the same lines in both lanes where both cursors fit in, else each
  // lane's own. At the end of a race whose words differ, those around the first of them.
  function follow() {
    visible ??= readRows();
    if (!visible) return; // nothing is on show
    const seen = lanes.filter(({ absent }) => !absent).map((lane) => ({ lane, row: lane.rows[lane.said - 1] ?? 0 }));
    const [slow, fast] = seen.toSorted((one, two) => one.row - two.row).concat(seen).slice(0, 2);
    const past = lanes.every(({ said }) => said > parted);
    const together = !past && fast.row - slow.row < visible;
    for (const one of seen) {
      const { lane, row } = one;
      if (grid.classList.contains("open")) scroll(lane, 0);
      else if (past && ended) scroll(lane, sentenceOf(lane.rows[parted], lane.starts, visible));
      else if (together) scroll(lane, startBetween(slow.lane.starts, fast.row - visible + 1, slow.row));
      else if (past || one === fast) scroll(lane, startBetween(lane.starts, row - visible + 1, row));
      else scroll(lane, sentenceOf(row, lane.starts, visible));
    }
  }

  function followAnew() {
    visible = null;
    follow();
  }

  // Reads the rows of all words and of the starts of sentences, which lays the page out. Returns how many are in sight.
  function readRows() {
    const height = parseFloat(getComputedStyle(lanes[0].box).lineHeight);
    for (const lane of lanes) {
      lane.rows = lane.cells.map(({ word }) => Math.floor(word.offsetTop / height));
      lane.starts = [...lane.text.children].filter((line) => line.offsetHeight).map((line) => Math.round(line.offsetTop / height));
    }
    return Math.round(lanes[0].box.clientHeight / height);
  }

  function scroll({ text, before, cells, rows }, from) {
    text.style.transform = `translateY(${-from}lh)`;
    const above = cells.filter(({ starts, state }, place) => starts && state !== "gone" && rows[place] < from).length;
    before.textContent = above ? `↑ ${above} word${above === 1 ? "" : "s"}` : "";
  }

  return { reset, add, show };
}

// Writes a token after a cell, or first: into its sentence, or into the next one.
function write(lane, before, [text, source]) {
  const end = source.endsWith("end");
  const [, space, rest] = /^(\s*)([^]*)$/.exec(text);
  const tail = before?.tail ?? "";
  const glued = Boolean(before) && !space && WORD.test(tail.slice(-1)) && WORD.test(rest.slice(0, 1)); // a piece of the word before
  const next = !before || beginsSentence(tail, space, rest);
  const slot = document.createElement("span");
  const word = Object.assign(document.createElement("span"), { className: "word later", textContent: end ? "■" : rest });
  if (end) Object.assign(word, { className: "word later end", title: "end of the answer" });
  if (glued) word.classList.add("joined");
  const sentence = next ? lane.text.appendChild(document.createElement("span")) : before.sentence;
  if (next) before?.slot.append(" "); // seen by those who read or copy the text
  slot.append(next ? /[^\n]*$/.exec(space.includes("\n") ? space : "")[0] : space, word); // a line's indent stays
  sentence.className = "sentence-line";
  sentence.append(slot);
  return { text, end, slot, word, sentence, tail: (tail + text).slice(-TAIL), own: false, state: "later", starts: !glued && WORD.test(rest) };
}

function beginsSentence(tail, space, word) {
  if (space.includes("\n") || /[。！？]$/.test(tail)) return true;
  return Boolean(space && word) && SENTENCE.test(tail) && !ABBREVIATION.test(tail) && !/^\p{Ll}/u.test(word);
}

const same = (cell, [text, source]) => cell.text === text && cell.end === source.endsWith("end");

// The first row at which a sentence starts, from `least` to `most`; else `least` itself.
function startBetween(starts, least, most) {
  return least <= 0 ? 0 : (starts.find((row) => row >= least && row <= most) ?? least);
}

// The row at which the sentence of a row starts, or the one above it where that is out of reach.
function sentenceOf(row, starts, rows) {
  const start = starts.findLast((one) => one <= row) ?? 0;
  return row - start < rows - 1 ? start : row - 1;
}
