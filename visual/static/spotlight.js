// What needed the picture: the picture again through a mask, above the darkened one.

const CLEAR = 0.17; // of the strongest tile: below it a tile stays dark
const FULL = 0.27; // above that it is lit
const SIDE = 256; // pixels of the mask
const BLUR = 10;
const LISTED = 5; // words in the table

// `toggle` switches the light on or off; `measure` asks for what was not measured yet, null where nobody can.
function createSpotlight(root, { toggle, measure }) {
  const picture = root.querySelector(".pic");
  const [image, lit] = [picture.querySelector("img"), picture.querySelector(".lit")];
  const table = picture.querySelector(".grey tbody");
  const pill = picture.querySelector(".pill");
  let race = null;
  let on = false;
  let looking = false; // it is being measured

  pill.addEventListener("click", () => {
    if (race?.grounding) toggle(!on);
    else if (measurable()) {
      looking = true;
      show(null);
      measure();
    }
  });

  function begin(next) {
    race = next;
    looking = false;
    const source = race.picture ?? "";
    const safe = source.startsWith("data:image/");
    picture.classList.toggle("none", !safe);
    if (safe) image.src = source;
    else image.removeAttribute("src");
    image.alt = race.picture ? "The picture that both models look at" : "";
    lit.style.backgroundImage = safe ? `url("${source}")` : "";
    show(null);
  }

  // Only the run that this visitor has just made, of one turn.
  function measurable() {
    return measure && race.live && race.end && !race.before.length;
  }

  // Lights what the words at these places needed, null for nothing.
  function show(places) {
    const all = places && race.grounding ? race.grounding.words.filter(({ at }) => places.includes(at)) : [];
    const local = all.filter((word) => word.local);
    const words = local.length ? local : all; // what a part of the picture decides, if that can be said
    on = words.length > 0;
    picture.classList.toggle("spot", on);
    root.classList.toggle("spotted", on);
    pill.setAttribute("aria-pressed", String(on));
    pill.textContent = looking && !race.grounding ? "Looking again, piece by piece …" : "What needed the picture?";
    pill.hidden = !race.picture || !(race.grounding ? race.grounding.words.length : measurable());
    if (!on) return;
    const heaviest = new Map(); // of each word once
    for (const word of words)
      if (word.weight > (heaviest.get(word.word)?.weight ?? -1)) heaviest.set(word.word, word);
    const listed = [...heaviest.values()].sort((a, b) => b.weight - a.weight).slice(0, LISTED);
    listed.sort((a, b) => a.at - b.at);
    table.replaceChildren(
      ...listed.map(({ word, seen, grey, instead }) => {
        const cells = [seen, grey, instead].map((one) => html("td", {}, one));
        return html("tr", {}, html("th", { scope: "row" }, word), ...cells);
      }),
    );
    const { grid } = race.grounding; // 0 where only the whole picture was greyed
    lit.style.maskImage = lit.style.webkitMaskImage = grid ? `url(${maskOf(words, grid)})` : "none";
  }

  return { begin, show, isOn: () => on };
}

function maskOf(words, grid) {
  const most = new Array(grid * grid).fill(0);
  for (const { lost } of words) lost.forEach((share, tile) => (most[tile] = Math.max(most[tile], share)));
  const top = Math.max(1, ...most);
  const tiles = Object.assign(document.createElement("canvas"), { width: grid, height: grid });
  const small = tiles.getContext("2d");
  most.forEach((share, tile) => {
    small.fillStyle = `rgba(0,0,0,${clamp((share / top - CLEAR) / FULL, 0, 1)})`;
    small.fillRect(tile % grid, Math.floor(tile / grid), 1, 1);
  });
  const mask = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
  const large = mask.getContext("2d");
  large.filter = `blur(${BLUR}px)`;
  large.imageSmoothingQuality = "high";
  large.drawImage(tiles, 0, 0, SIDE, SIDE);
  return mask.toDataURL();
}
