// The race: the items of both lanes and their blocks on the shared clock. Their words are lanes.js.

export const LANES = ["target-only", "speculative"];

// `words` are those of both lanes.
export function createRace(root, words) {
  const lanes = {};
  for (const name of LANES) lanes[name] = { track: root.querySelector(`.track[data-lane="${name}"]`), items: [], shown: 0 };
  const playhead = root.querySelector(".playhead");
  const axis = { middle: root.querySelector(".axis-middle"), end: root.querySelector(".axis-end") };
  let total = 0;
  let current = null;
  let led = lanes.speculative; // the lane whose steps are looked at
  let totals = null; // the final headline, once the run is over
  let before = ""; // what was shown last

  function reset(run) {
    total = 0;
    current = totals = null;
    before = "";
    led = lanes[run.led];
    words.reset(run);
    for (const lane of Object.values(lanes)) {
      Object.assign(lane, { items: [], shown: 0 });
      lane.track.replaceChildren();
    }
  }

  function add(frame) {
    const lane = lanes[frame.lane];
    const { end: start = 0, said = 0 } = lane.items.at(-1) ?? {};
    const seconds = Array.isArray(frame.seconds) ? frame.seconds.reduce((a, b) => a + b, 0) : frame.seconds;
    const item = { start, end: start + seconds, said: said + frame.tokens.length, frame, words: words.add(frame.lane, frame.tokens, lane.items.length) };
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

  // Returns whether words came or went.
  function show(time) {
    for (const lane of Object.values(lanes)) {
      const shown = countUntil(lane.items, time);
      for (let i = Math.min(shown, lane.shown); i < Math.max(shown, lane.shown); i++) lane.items[i].block.classList.toggle("later", i >= shown);
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
    return say();
  }

  function say() {
    const all = Object.entries(lanes);
    const said = Object.fromEntries(all.map(([name, { items, shown }]) => [name, items[shown - 1]?.said ?? 0]));
    const over = all.every(([, { items, shown }]) => shown === items.length) ? totals : null;
    const now = [...Object.values(said), ...all.map(([, { items }]) => items.length), Boolean(over)].join();
    if (now === before) return false;
    before = now;
    words.show(said, over);
    return true;
  }

  // The first words of the step on show, while somebody looks at their branch in the tree.
  function hint(count) {
    current?.words.forEach((word, place) => word.classList.toggle("hinted", place < count));
  }

  return {
    reset, add, place, show, hint,
    end: (frame) => (totals = frame.totals),
    lane: (name) => lanes[name].items,
    led: () => led.items,
    said: () => led.items.slice(0, led.shown),
    total: () => total,
    stepsAt: (time) => countUntil(led.items, time) - 1, // item 0 is the prefill
  };
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
