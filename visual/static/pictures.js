// Pictures of a step for slides: its tree with title, sentence and legend, as SVG, PNG, or one PNG that plays its phases.

const PNG_SCALE = 3; // sharp in print
const FILM = { width: 920, phase: 1200, last: 2400, scales: [2, 1.5, 1], bytes: 2_000_000 }; // milliseconds; the first scale that stays below so many bytes
const EDGE = 20; // pixels around everything
const LEAST = 620; // pixels that a picture is wide
const FONT = "system-ui, sans-serif";
const TITLE = { size: 13, weight: 400, line: 19, ink: "--muted" };
const SAID = { size: 16.5, weight: 600, line: 23, ink: "--ink" };
const KEY = { size: 12.5, weight: 400, line: 21, ink: "--muted" };
const MARK = 18; // pixels for a mark of the legend
const SCALE = 74; // pixels of the scale of doubt

// `shown()` gives the step and the run on show.
export function createPictures(root, { modules, plotly, shown }) {
  const { drawingOf, put, raster, SVG } = modules.drawing;
  const find = (selector) => root.querySelector(selector);
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const ruler = document.createElement("canvas").getContext("2d");

  const svg = () => framed(drawingOf(find(".tree")), heading(), styled(find(".is-inside .phase-said, .step:not(.is-inside) .sentence")));
  const heading = () => `specllava · ${find(".step-name").textContent.toLowerCase()} · “${find(".asked").textContent.trim()}”`;
  const png = () => raster(svg(), PNG_SCALE);

  // The sentence on show as pieces of one style each.
  function styled(sentence) {
    return [...sentence.childNodes].map((piece) => {
      const { fontStyle, fontWeight, color } = getComputedStyle(piece.nodeType === Node.TEXT_NODE ? sentence : piece);
      const weight = piece.matches?.(".say-strong, .say-rejected, .say-target") ? 800 : Number(fontWeight) > SAID.weight ? fontWeight : SAID.weight;
      return { text: piece.textContent, style: fontStyle, weight, fill: color };
    });
  }

  // A picture for each phase, drawn aside at a width for slides: what is on show stays as it is. `progress` hears a word.
  async function film(progress) {
    const [{ frame, run }, title] = [shown(), heading()];
    const step = modules.step_phases.readStep(frame, run);
    const phases = modules.step_phases.phasesOf(step);
    const texts = await aside(frame, (chart) => {
      const drawing = modules.phase_drawing.createDrawing(chart, modules.phase_words);
      const lines = Math.max(...phases.map(({ say }) => wrapped([{ text: say }], SAID, chart.clientWidth - 2 * EDGE).length));
      return phases.map((phase) => {
        drawing.show(step, phase);
        return framed(drawingOf(chart, true), title, [{ text: phase.say }], lines);
      });
    });
    const times = phases.map((_, place) => (place < phases.length - 1 ? FILM.phase : FILM.last));
    for (const scale of FILM.scales) {
      const stills = [];
      for (const text of texts) {
        progress(`Drawing phase ${stills.length + 1} of ${texts.length} …`);
        stills.push(new Uint8Array(await (await raster(text, scale)).arrayBuffer()));
      }
      const made = modules.apng.animated(stills, times);
      if (made.size < FILM.bytes || scale === FILM.scales.at(-1)) return made;
    }
  }

  // Draws a step's tree where nobody sees it, and takes it away again.
  async function aside(frame, act) {
    const library = await plotly();
    const chart = Object.assign(document.createElement("div"), { className: "tree picture-stage" });
    chart.setAttribute("aria-hidden", "true");
    root.append(chart);
    try {
      const { data, layout } = frame.figure;
      const seen = data.filter(({ visible, name }) => visible !== false && name !== "marked").map((trace) => ({ ...trace }));
      const figure = modules.tree_fit.fit({ data: seen, layout: { ...layout, meta: { ...layout.meta, checked: null } } }, FILM.width, { inside: true });
      put(chart, { style: `width: ${Math.max(FILM.width, figure.width)}px; height: ${figure.height}px` });
      await library.newPlot(chart, figure.data, figure.layout, { staticPlot: true });
      return await act(chart);
    } finally {
      library.purge(chart);
      chart.remove();
    }
  }

  // --- title, sentence and legend around a drawing ------------------------------------------------

  // The sentence has room for so many `lines`, so that the pictures of one film have one size.
  function framed({ layers, x, y, width: inner, height: inside }, title, said, lines = 0) {
    const width = Math.max(LEAST, inner + 2 * EDGE);
    const parts = [[{ text: title }], said].map((pieces, place) => wrapped(pieces, [TITLE, SAID][place], width - 2 * EDGE));
    const picture = make("svg", {});
    let top = EDGE;
    for (const [place, font] of [TITLE, SAID].entries()) {
      for (const [row, line] of parts[place].entries()) picture.append(spelled(line, EDGE, top + font.size + row * font.line, font));
      top += Math.max(parts[place].length, place ? lines : 0) * font.line + 4;
    }
    put(layers, { transform: `translate(${(width - inner) / 2 - x},${top - y})` });
    const key = legend(top + inside + 8, width);
    const height = Math.ceil(top + inside + 8 + key.height + EDGE);
    put(picture, { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
    const [name, told] = [["title", title], ["desc", said.map(({ text }) => text).join("")]].map(([tag, text]) => Object.assign(make(tag, {}), { textContent: text }));
    picture.prepend(name, told, make("rect", { width, height, fill: colour("--surface") }), layers);
    picture.append(...key.parts);
    return new XMLSerializer().serializeToString(picture);
  }

  // The page's own legend: its marks and words, in rows as wide as the picture.
  function legend(top, width) {
    const items = [...root.querySelectorAll(".legend .marks li")].map((item) => ({
      mark: [...item.querySelector(".mark").classList].at(-1), text: item.textContent.trim(),
    }));
    const line = [...find(".legend .scale").parentNode.childNodes].filter((part) => part.getClientRects?.().length !== 0); // some rules leave a part out
    const scale = line.findIndex((part) => part.matches?.(".scale"));
    const [before, after] = [line.slice(0, scale), line.slice(scale)].map((parts) => parts.map((part) => part.textContent.trim()));
    items.push({ mark: "scale", text: before.join(" ").trim(), behind: after.join("") });
    const parts = [];
    let [x, row] = [EDGE, 0];
    for (const { mark, text, behind = "" } of items) {
      const [first, second] = [text, behind].map((part) => measured(part, KEY));
      const wide = mark === "scale" ? first + SCALE + second + 12 : MARK + first;
      if (x > EDGE && x + wide > width - EDGE) [x, row] = [EDGE, row + 1];
      const base = top + KEY.size + row * KEY.line;
      if (mark === "scale") parts.push(write(text, x, base, KEY), ...gradient(x + first + 6, base - 9), write(behind, x + first + SCALE + 12, base, KEY));
      else parts.push(markOf(mark, x + 6, base - 4.5), write(text, x + MARK, base, KEY));
      x += wide + 16;
    }
    return { parts, height: (row + 1) * KEY.line };
  }

  function markOf(name, x, y) {
    const [accepted, rejected, target, quiet] = ["--accepted", "--rejected", "--target", "--quiet"].map(colour);
    const line = (d, stroke, width, dash = "none") => make("path", { d, fill: "none", stroke, "stroke-width": width, "stroke-dasharray": dash });
    if (name === "mark-root") return line(`M${x},${y - 6}l6,6l-6,6l-6,-6Z`, target, 2.4);
    if (name === "mark-accepted") return make("circle", { cx: x, cy: y, r: 4.8, fill: "none", stroke: accepted, "stroke-width": 2.6 });
    if (name === "mark-rejected") return line(`M${x - 5},${y - 5}h10v10h-10ZM${x - 5},${y - 5}l10,10M${x + 5},${y - 5}l-10,10`, rejected, 1.6);
    if (name === "mark-unreached") return make("circle", { cx: x, cy: y, r: 5, fill: "none", stroke: colour("--muted"), "stroke-width": 1.8, "stroke-dasharray": "2.5 2" });
    return line(`M${x - 7},${y - 3.5}l14,7`, quiet, 1.5);
  }

  // The scale of doubt, with the colours of the page's.
  function gradient(x, y) {
    const colours = colour("--entropy-scale").match(/rgb\([^)]*\)|#[0-9a-f]{6}/g);
    const scale = make("linearGradient", { id: "doubt" });
    scale.append(...colours.map((stop, place) => make("stop", { offset: place / (colours.length - 1), "stop-color": stop })));
    return [scale, make("rect", { x, y, width: SCALE, height: 9, rx: 4.5, fill: "url(#doubt)" })];
  }

  function measured(text, { size, weight, style = "normal" }) {
    ruler.font = `${style} ${weight} ${size}px ${FONT}`;
    return ruler.measureText(text).width;
  }

  // Lines of words, each word with the style of its piece; words that two pieces share stay together.
  function wrapped(pieces, font, width) {
    const words = [[]];
    for (const { text, ...style } of pieces) {
      for (const part of text.split(/(\s+)/)) {
        if (/^\s+$/.test(part)) words.push([]);
        else if (part) words.at(-1).push({ text: part, ...style });
      }
    }
    const long = (word) => word.reduce((sum, part) => sum + measured(part.text, { ...font, ...part }), 0);
    const space = measured(" ", font);
    const lines = [];
    let room = 0;
    for (const word of words.filter(({ length }) => length)) {
      const wide = long(word);
      if (!lines.length || wide + space > room) [room, lines[lines.length]] = [width, []];
      lines.at(-1).push(word);
      room -= wide + space;
    }
    return lines;
  }

  function spelled(line, x, y, font) {
    const text = write("", x, y, font);
    line.forEach((word, place) => word.forEach(({ text: part, style, weight, fill }, piece) => {
      const made = make("tspan", { ...(style && { "font-style": style }), ...(weight && { "font-weight": weight }), ...(fill && { fill }) });
      text.append(Object.assign(made, { textContent: place && !piece ? ` ${part}` : part }));
    }));
    return text;
  }

  function write(text, x, y, { size, weight, ink }) {
    return Object.assign(make("text", { x, y, fill: colour(ink), "font-family": FONT, "font-size": size, "font-weight": weight }), { textContent: text });
  }

  function make(tag, attributes) {
    return put(document.createElementNS(SVG, tag), attributes);
  }

  return { svg, png, film };
}
