// The two lanes: their words, their blocks on the shared clock, and each one's text at a given moment.
// Model text enters the page as textContent only.

const LINE = 26; // pixels of a line of words
export const LANES = ["target-only", "speculative"];

export function createRace(root) {
  const lanes = {};
  for (const name of LANES) {
    lanes[name] = {
      words: root.querySelector(`[data-lane="${name}"] .words`),
      track: root.querySelector(`.track[data-lane="${name}"]`),
      items: [],
      shown: 0,
    };
  }
  const playhead = root.querySelector(".playhead");
  const whole = root.querySelector(".whole");
  whole.addEventListener("click", () => {
    const open = root.querySelector(".lanes").classList.toggle("open");
    whole.setAttribute("aria-expanded", String(open));
    for (const lane of Object.values(lanes)) follow(lane);
  });
  const axis = { middle: root.querySelector(".axis-middle"), end: root.querySelector(".axis-end") };
  let total = 0;
  let current = null;
  let led = lanes.speculative; // the lane whose steps are looked at

  // A lane that does not run says why, instead of its words.
  function reset(run) {
    total = 0;
    current = null;
    led = lanes[run.led];
    for (const [name, lane] of Object.entries(lanes)) {
      Object.assign(lane, { items: [], shown: 0 });
      lane.words.replaceChildren(...(name in run.absent ? [run.absent[name]] : []));
      lane.words.classList.toggle("absent", name in run.absent);
      lane.track.replaceChildren();
    }
  }

  function add(frame) {
    const lane = lanes[frame.lane];
    const start = lane.items.at(-1)?.end ?? 0;
    const seconds = Array.isArray(frame.seconds) ? frame.seconds.reduce((a, b) => a + b, 0) : frame.seconds;
    const item = { start, end: start + seconds, frame, words: [] };
    for (const [text, source] of frame.tokens) item.words.push(addWord(lane, text, source, lane.items.length));
    item.block = addBlock(lane, frame, lane.items.length);
    lane.items.push(item);
    total = Math.max(total, item.end);
  }

  // Blocks are placed once per update, not once per frame: the scale changes with the total.
  function place() {
    for (const lane of Object.values(lanes)) {
      for (const item of lane.items) {
        item.block.style.left = `${(100 * item.start) / total}%`;
        item.block.style.width = `${(100 * (item.end - item.start)) / total}%`;
      }
    }
    axis.middle.textContent = total ? duration(total / 2) : "";
    axis.end.textContent = total ? duration(total) : "";
  }

  function show(time) {
    for (const lane of Object.values(lanes)) {
      const shown = countUntil(lane.items, time);
      for (let i = Math.min(shown, lane.shown); i < Math.max(shown, lane.shown); i++) markPast(lane.items[i], i < shown);
      if (lane.shown !== shown) follow(lane, shown);
      lane.shown = shown;
    }
    const item = led.items[Math.max(1, led.shown - 1)];
    if (item !== current) {
      hint(0);
      if (current) markNow(current, false);
      if (item) markNow(item, true);
      current = item ?? null;
    }
    playhead.style.left = total ? `${(100 * Math.min(time, total)) / total}%` : "0";
  }

  // A lane's latest words are in view; the rest is a click away.
  function follow(lane, shown = lane.shown) {
    const word = lane.items[Math.max(0, shown - 1)]?.words[0];
    if (word) lane.words.scrollTop = (Math.floor(word.offsetTop / LINE) - 1) * LINE;
  }

  // The first words of the step on show, while somebody looks at their branch in the tree.
  function hint(count) {
    current?.words.forEach((word, place) => word.classList.toggle("hinted", place < count));
  }

  return {
    reset, add, place, show, hint,
    lane: (name) => lanes[name].items,
    led: () => led.items,
    total: () => total,
    stepsAt: (time) => countUntil(led.items, time) - 1, // item 0 is the prefill
  };
}

function addWord(lane, text, source, index) {
  // The underline belongs to the word, not to the space before it.
  const [, space, word] = /^(\s*)([^]*)$/.exec(text);
  if (space && lane.words.hasChildNodes()) lane.words.append(document.createTextNode(space));
  const span = document.createElement("span");
  span.className = `word later ${source.split(" ").map((s) => `from-${s}`).join(" ")}`;
  span.textContent = source.endsWith("end") ? "■" : word;
  if (source.endsWith("end")) span.title = "end of the answer";
  span.dataset.item = index;
  if (!space && lane.words.hasChildNodes() && /^\p{L}/u.test(word)) span.classList.add("joined"); // a piece of the word before
  lane.words.append(span);
  return span;
}

function addBlock(lane, frame, index) {
  const block = document.createElement("div");
  block.className = frame.kind === "prefill" ? "lap prefill later" : "lap later";
  block.dataset.item = index;
  block.title = frame.kind === "prefill" ? `reading picture and question ${duration(frame.seconds)}` : blockTitle(frame.seconds);
  if (frame.kind === "step" && frame.lane === "speculative") {
    const [draft, verify, rest] = frame.seconds;
    const whole = draft + verify + rest || 1;
    block.style.setProperty("--draft", `${(100 * draft) / whole}%`);
    block.style.setProperty("--verified", `${(100 * (draft + verify)) / whole}%`);
    block.classList.add("split");
  }
  lane.track.append(block);
  return block;
}

function blockTitle([draft, verify, rest]) {
  return `drafting ${duration(draft)}, the target's pass ${duration(verify)}, bookkeeping ${duration(rest)}`;
}

function markPast(item, past) {
  item.block.classList.toggle("later", !past);
  for (const word of item.words) word.classList.toggle("later", !past);
}

function markNow(item, now) {
  item.block.classList.toggle("now", now);
  for (const word of item.words) word.classList.toggle("now", now);
}

function countUntil(items, time) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].end <= time + 1e-9) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function duration(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}
