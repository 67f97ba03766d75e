// The answer: one text with two cursors; two texts where the answers part.

function createText(root) {
  const parts = root.querySelectorAll(".answer .text");
  let race = null;
  let shown = []; // words that have a span, by lane
  let marked = []; // how many of them are shown, and the first that is new

  // One span per word, its leading blank outside of what is marked; made once, and again only for words that are new.
  function fill(text, words, from) {
    for (const [at, [word, source]] of words.slice(from).entries()) {
      const [lead, body] = split(word);
      const [kind, end] = source.split(" ");
      const marked = html("span", { class: `word ${kind}${end ? " end" : ""}` }, end ? "" : body);
      text.append(html("span", { "data-at": from + at, class: "token" }, lead, marked));
    }
  }

  function begin(next) {
    race = next;
    shown = [0, 0];
    marked = shown.map(() => [0, 0]);
    for (const text of parts) text.replaceChildren();
    for (const [question, answer] of race.before)
      parts[0].append(
        html("span", { class: "earlier" }, `${question} `),
        html("span", { class: "earlier answered" }, answer),
        html("br"),
      );
    parts[1].hidden = true;
  }

  function extend() {
    const lists = [race.words, race.aloneWords];
    const parted = race.raced && (race.end ? race.end.parted !== null : differ(race));
    parts[1].hidden = !parted;
    root.classList.toggle("parted", parted);
    lists.slice(0, parted ? 2 : 1).forEach((words, lane) => {
      fill(parts[lane], words, shown[lane]);
      shown[lane] = words.length;
    });
    if (parted) for (const text of parts) text.querySelector(`[data-at="${race.end?.parted}"]`)?.classList.add("parts");
  }

  // Shows the first words of the answer. Options: `fresh`, the first that is new; `alone`, where the large model alone
  // is; `plain`, without marks; `done`, without a cursor.
  function show(upto, { fresh = Infinity, alone = null, plain = false, done = false } = {}) {
    extend();
    parts[0].classList.toggle("plain", plain);
    mark(0, upto, fresh);
    if (!parts[1].hidden) mark(1, alone ?? race.aloneWords.length, Infinity);
    cursor(parts[0], "cursor", done ? null : upto);
    const behind = alone !== null && parts[1].hidden && alone < race.aloneWords.length + 1;
    cursor(parts[0], "cursor-alone", behind ? Math.min(alone, upto) : null);
  }

  function toEnd() {
    for (const box of [parts[0].parentElement, ...parts]) box.scrollTop = 1e6; // with no look at its height
  }

  // A text whose beginning is above the box fades there.
  const fadeAbove = () => parts[0].parentElement.classList.toggle("cut", parts[0].parentElement.scrollTop > 4);
  parts[0].parentElement.addEventListener("scroll", fadeAbove);

  // Only words between what was shown and what is to be shown change.
  function mark(lane, upto, fresh) {
    const [was, wasFresh] = marked[lane];
    const tokens = parts[lane].querySelectorAll(".token");
    const last = Math.min(tokens.length, Math.max(upto, was, shown[lane]));
    for (let at = Math.min(upto, was, fresh, wasFresh); at < last; at += 1) {
      tokens[at].hidden = at >= upto;
      tokens[at].classList.toggle("new", at >= fresh && at < upto);
    }
    marked[lane] = [upto, fresh];
  }

  // A cursor before the word of that number; none where it is null.
  function cursor(text, name, before) {
    text.querySelector(`.${name}`)?.remove();
    if (before === null) return;
    const element = html("i", { class: name });
    const token = text.querySelector(`[data-at="${before}"]`);
    if (token) token.before(element);
    else text.append(element);
  }

  const span = (at) => parts[0].querySelector(`[data-at="${at}"] .word`);
  const isShown = (at) => span(at)?.parentElement.hidden === false;

  function markSeen(places) {
    for (const token of parts[0].querySelectorAll(".token"))
      token.classList.toggle("seen", places.includes(Number(token.dataset.at)));
  }

  return { begin, show, toEnd, span, isShown, markSeen };
}

const split = (word) => /^(\s*)([^]*)$/.exec(word).slice(1);

function differ({ words, aloneWords }) {
  const shared = Math.min(words.length, aloneWords.length);
  for (let at = 0; at < shared; at += 1) if (words[at][0] !== aloneWords[at][0]) return true;
  return false;
}

// --- words fly from the tree into the answer -------------------------------------------------------------

const FLIGHT = 500; // milliseconds
const APART = 60;

// Accepted nodes whose words are shown in the answer, with both places in pixels of `frame`, an element of that width.
function landings(frame, width, field, tree, text, first) {
  const scale = frame.width / width || 1;
  const place = (x, y) => [(x - frame.left) / scale, (y - frame.top) / scale];
  const box = field.root.getBoundingClientRect();
  const [left, top] = place(box.left, box.top);
  const nodes = [...tree.path, tree.kind.indexOf("n")].filter((node) => node > 0);
  return nodes.flatMap((node, number) => {
    if (!text.isShown(first + number)) return [];
    const span = text.span(first + number);
    const word = span.getBoundingClientRect();
    const [from, to] = [[left + field.at.x[node], top + field.at.y[node]], place(word.left + word.width / 2, word.top)];
    return [{ node, number, span, from, to, name: tree.kind[node] === "n" ? "large" : "small" }];
  });
}

function flyWords(root, field, tree, text, first) {
  if (calm() || !field.at) return;
  const all = landings(root.getBoundingClientRect(), root.offsetWidth, field, tree, text, first);
  for (const { node, number, span, from, to, name } of all) {
    const [x, y] = [from[0], from[1] - 30];
    const word = html("span", { class: `flying ${name}`, "aria-hidden": true }, tree.text[node]);
    word.style.left = `${x}px`;
    word.style.top = `${y}px`;
    root.append(word);
    const away = `translate(${to[0] - x}px, ${to[1] - y}px) translateX(-50%)`;
    const timing = { duration: FLIGHT, delay: number * APART, easing: "cubic-bezier(.4,0,.2,1)", fill: "both" };
    span.animate([{ opacity: 0 }, { opacity: 0, offset: 0.9 }, { opacity: 1 }], timing);
    const flight = [{ transform: "translateX(-50%)", opacity: 0.9 }, { transform: away, opacity: 1 }];
    const leave = () => word.remove();
    word.animate(flight, timing).finished.then(leave, leave);
  }
}

// Threads from accepted nodes to their words in the answer.
function drawThreads(root, field, tree, text, first) {
  const threads = root.querySelector(".threads");
  threads.replaceChildren();
  if (!tree || narrow() || !field.at) return;
  const frame = threads.getBoundingClientRect();
  const ends = landings(frame, threads.clientWidth, field, tree, text, first);
  if (!ends.length) return;
  const answer = root.querySelector(".answer").getBoundingClientRect();
  const bottom = (answer.top - frame.top) / (frame.width / threads.clientWidth || 1) + 8;
  threads.append(svg("defs", {}, ...["small", "large"].map((name) => fade(name, ends[0].from[1] + 14, bottom))));
  for (const { from, to, name } of ends) {
    const [x1, y1, x2, y2] = [from[0], from[1] + 14, to[0], to[1] + 2];
    const [down, up] = [y1 + (y2 - y1) * 0.62, y1 + (y2 - y1) * 0.38];
    threads.append(
      svg("path", { d: `M${x1} ${y1}C${x1} ${down} ${x2} ${up} ${x2} ${y2}`, stroke: `url(#thread-${name})` }),
    );
  }
}

function fade(name, top, bottom) {
  const stop = (offset, opacity) => svg("stop", { offset, class: `stop-${name}`, "stop-opacity": opacity });
  return svg(
    "linearGradient",
    { id: `thread-${name}`, gradientUnits: "userSpaceOnUse", x1: 0, y1: top, x2: 0, y2: bottom },
    stop(0, 0.75),
    stop(0.55, 0.4),
    stop(1, 0),
  );
}
