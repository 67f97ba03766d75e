// Marks the words of both lanes that needed the picture, and lights the part of it that the word under the pointer comes
// from. Recorded races bring what was measured; of a race of one's own the lab measures it, at a click.

const CLEAR = 10; // percent of its probability that a word loses with some tile, so that there is a part to light
const CARD = "#lab-grounding";

export function create(root, { player }) {
  const lanes = root.querySelector(".lanes");
  const button = root.querySelector(".grounding-toggle");
  const key = root.querySelector(".grounding-key");
  const map = Object.assign(document.createElement("div"), { className: "grounding-map" });
  map.setAttribute("aria-hidden", "true");
  let found = null; // what was measured of the race on show
  let on = false;
  let chosen = null; // the word that was clicked
  let waiting = null; // watches the lab's notice

  button.addEventListener("click", () => (found ? set(!on) : measure()));
  lanes.addEventListener("pointerover", ({ target }) => show(entryOf(target) ?? chosen));
  lanes.addEventListener("pointerleave", () => show(chosen));
  lanes.addEventListener("click", ({ target }) => show((chosen = entryOf(target))));
  document.addEventListener("grounded", ({ detail }) => take(detail));

  function begin() {
    set(false);
    rest();
    found = null;
    button.hidden = true;
  }

  function end(frame) {
    found = frame.grounding ?? null;
    button.hidden = !found && (!document.querySelector(CARD) || Boolean(player.run.turn) || !document.querySelector("#picture img"));
  }

  // What the lab measured, if it is of the answer on show.
  function take(measured) {
    rest();
    if (!player.end) return;
    const ids = player.race.led().flatMap(({ frame }) => frame.ids);
    if (player.run.turn || !ids.every((id, at) => measured.ids[at] === id)) {
      return explain("What was measured is another answer: picture, question or settings were changed. Run again first.");
    }
    found = { ...measured, words: measured.words.filter(({ at }) => at < ids.length) };
    set(true);
  }

  // Lets the lab measure it; until then its notice is shown here.
  function measure() {
    const notice = () => document.querySelector(`${CARD} .notice`)?.textContent;
    const before = notice(); // of the time before
    const tell = () => explain((notice() !== before && notice()) || "The large model reads its answer again, with a grey picture …");
    document.querySelector(`${CARD} .lab-run`).click();
    waiting = new MutationObserver(tell);
    waiting.observe(document.querySelector(CARD), { childList: true, subtree: true, characterData: true });
    tell();
  }

  function explain(words) {
    lanes.classList.add("grounding-waits");
    key.textContent = words;
  }

  function rest() {
    waiting?.disconnect();
    waiting = null;
    lanes.classList.remove("grounding-waits");
  }

  function set(next) {
    on = next;
    chosen = null;
    button.setAttribute("aria-pressed", String(on));
    lanes.classList.toggle("grounding", on);
    for (const word of lanes.querySelectorAll(".grounded")) word.classList.remove("grounded");
    if (lanes.classList.contains("open") !== on) root.querySelector(".whole").click();
    if (on) player.actions.last(); // every word is written
    if (on) for (const words of wordsOfLanes()) for (const { at } of found.words) words[at]?.classList.add("grounded");
    show(null);
  }

  // Words by lane; after the first that differ, those of the lane that was measured alone.
  function wordsOfLanes() {
    const led = player.race.led().flatMap(({ words }) => words);
    return [...lanes.querySelectorAll("article")].map((lane) => {
      const words = [...lane.querySelectorAll(".word")];
      const other = words.findIndex((word, at) => word.textContent !== led[at]?.textContent);
      return lane.contains(led[0]) ? led : words.slice(0, other < 0 ? words.length : other);
    });
  }

  function entryOf(target) {
    if (!on || !target.matches(".grounded")) return null;
    const place = wordsOfLanes().map((words) => words.indexOf(target)).find((at) => at >= 0);
    return found.words.find(({ at }) => at === place) ?? null;
  }

  // What one word owes to the picture; null: what all marks mean.
  function show(entry) {
    if (!on) return map.remove();
    key.textContent = entry ? sentence(entry) : summary();
    const image = document.querySelector("#picture img");
    const most = Math.max(0, ...(entry?.lost ?? []));
    if (most < CLEAR || !image || (player.run.picture && image.src !== player.run.picture)) return map.remove();
    light(image, entry.lost.map((lost) => lost / most));
  }

  const summary = () => `${found.words.length} of ${found.ids.length} tokens needed the picture: with a plain grey one the large model finds them at least ${found.factor} times less likely. Point at one.`;

  function sentence({ at, seen, blank, instead, lost }) {
    const word = player.race.led().flatMap(({ words }) => words)[at].textContent;
    const chances = `“${word}”: ${percent(seen)} likely for the large model, ${percent(blank)} with a plain grey picture`;
    const rival = instead === null ? "." : `, where it prefers “${instead}”.`;
    const part = !lost.length ? "" : Math.max(...lost) < CLEAR ? " No single part of the picture decides it." : " Lit: the parts that matter; greyed out, they make it less likely.";
    return `${chances}${rival}${part}`;
  }

  // Lays the tiles over the picture as it is drawn, which need not fill its box.
  function light(image, shares) {
    const scale = Math.min(image.clientWidth / image.naturalWidth, image.clientHeight / image.naturalHeight);
    const [width, height] = [image.naturalWidth * scale, image.naturalHeight * scale];
    image.parentElement.style.position = "relative";
    Object.assign(map.style, { width: `${width}px`, height: `${height}px`, left: `${image.offsetLeft + (image.clientWidth - width) / 2}px`, top: `${image.offsetTop + (image.clientHeight - height) / 2}px` });
    map.style.setProperty("--grid", Math.sqrt(shares.length));
    map.replaceChildren(...shares.map((share) => {
      const tile = document.createElement("i");
      tile.style.setProperty("--lost", share.toFixed(2));
      return tile;
    }));
    image.parentElement.append(map);
  }

  return { begin, end, mark: () => found && set(true) };
}

const percent = (probability) => (probability < 0.005 ? "under 1 %" : `${Math.round(100 * probability)} %`);
