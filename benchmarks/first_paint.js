// The page's columns as a visitor sees them once the player shows its first step, as markup that needs no script and
// has any width: Gradio's wrappers are left out, what needs a script is switched off, and Plotly's pixels across are
// percentages.
async () => {
  const SVG = "http://www.w3.org/2000/svg";
  const CLASSES = ["card", "picture-card", "question-card", "sources-card", "chips", "examples", "suggestions", "pill", "example",
    "actions", "hint", "pictured", "settings", "settings-open", "summary"];
  const IDS = ["picture", "question", "run", "stop", "notice"];
  const ATTRIBUTES = ["alt", "rows", "type"];
  const SHARPNESS = 2; // pixels of a picture to one of the page
  const EXAMPLE = 25; // pixels of an example's picture

  const ask = make("div", { id: "ask" });
  for (const card of document.querySelectorAll("#ask > :is(.picture-card, .question-card, .sources-card)")) {
    ask.append(...(await plain(card)));
  }
  const show = make("div", { id: "show" });
  show.append(player());
  const small = ask.querySelector("#picture img");
  if (small) show.querySelector(".opening-picture").src = small.src;
  for (const control of [ask, show].flatMap((column) => [...column.querySelectorAll("button, input, select")])) {
    control.setAttribute("disabled", "");
  }
  return `${ask.outerHTML}\n${show.outerHTML}\n`;

  // What the page's stylesheet knows, with text and pictures; of other elements what they hold.
  async function plain(node) {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent.trim() ? [node.textContent.trim()] : [];
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches("svg, [type=file], [data-testid=status-tracker], dialog")) return [];
    const held = (await Promise.all([...node.childNodes].map(plain))).flat();
    if (node.matches(".sr-only")) return held.length ? [filled(make("span", { class: "offscreen" }), held)] : [];
    const classes = CLASSES.filter((name) => node.classList.contains(name));
    const id = IDS.includes(node.id) ? node.id : "";
    if (!id && !classes.length && !node.matches("img, textarea, [type=checkbox]")) return held;
    const copy = make(node.matches("#question") ? "label" : node.localName);
    if (id) copy.id = id;
    if (classes.length) copy.className = classes.join(" ");
    for (const name of ATTRIBUTES) if (node.hasAttribute(name)) copy.setAttribute(name, node.getAttribute(name));
    if (node.matches("img")) copy.src = await embedded(node);
    if (node.matches("textarea")) copy.setAttribute("readonly", "");
    return [filled(copy, node.matches("textarea") ? [node.value] : held)];
  }

  async function embedded(image) {
    await image.decode();
    const { width, height } = image.getBoundingClientRect();
    const size = Math.max(width, height) || EXAMPLE; // none where only another view shows it
    const scale = Math.min(1, (SHARPNESS * size) / Math.max(image.naturalWidth, image.naturalHeight));
    const canvas = Object.assign(document.createElement("canvas"), { width: scale * image.naturalWidth, height: scale * image.naturalHeight });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/webp", 0.9);
  }

  function player() {
    const live = document.querySelector(".player");
    const copy = live.cloneNode(true);
    copy.querySelector(".tree").replaceChildren(still(live.querySelector(".tree")));
    copy.querySelectorAll(".charts, .versus, .pays, .glossary, [hidden]:not(.opening [hidden], .opening-foot [hidden])").forEach((part) => part.remove()); // below the first screen
    for (const name of ["title", "data-item"]) {
      copy.querySelectorAll(`[${name}]`).forEach((element) => element.removeAttribute(name));
    }
    copy.querySelectorAll(".words-before").forEach((count) => count.replaceChildren()); // another number at another width
    copy.querySelector(".scrub").setAttribute("value", live.querySelector(".scrub").value);
    copy.querySelectorAll("option").forEach((option) => option.toggleAttribute("selected", option.value === live.querySelector(".speed").value));
    return copy;
  }

  // Places across are shares of the plot's width; only edges are stretched, and their strokes are not.
  function still(chart) {
    const { width, height } = chart.querySelector(".plotclip rect").getBBox();
    const { x: left, y: top } = chart.querySelector(".axesclip[id$=xy] rect").getBBox();
    const room = { width: "100%", height, overflow: "visible" };
    const edges = draw("svg", { ...room, viewBox: `${left} ${top} ${width} ${height}`, preserveAspectRatio: "none" });
    for (const path of chart.querySelectorAll(".shapelayer path")) {
      edges.append(put(path.cloneNode(), { "vector-effect": "non-scaling-stroke" }));
    }
    const place = ([x, y]) => ({ x: `${round((100 * x) / width)}%`, y: round(y) });
    const traces = [...chart.querySelectorAll(".scatterlayer .trace")].map((trace) => {
      const nodes = [...trace.querySelectorAll(".point")].map((point) => {
        const mark = filled(draw("svg", { ...place(shift(point)), overflow: "visible" }), [point.cloneNode()]);
        mark.firstChild.removeAttribute("transform");
        return mark;
      });
      const labels = [...trace.querySelectorAll(".textpoint text")].map((text) => {
        const [across, down] = shift(text.parentNode);
        return put(text.cloneNode(true), place([Number(text.getAttribute("x")) + across, Number(text.getAttribute("y")) + down]));
      });
      const uid = [...trace.classList].find((name) => /^trace./.test(name));
      return filled(draw("g", { class: uid }), [filled(draw("g", { class: "points" }), nodes), filled(draw("g", { class: "textpoint" }), labels)]);
    });
    const area = chart.querySelector(".nsewdrag").getBoundingClientRect();
    const said = [...chart.querySelectorAll(".annotation text")].map((text) => {
      const at = new DOMPoint(Number(text.getAttribute("x")), Number(text.getAttribute("y"))).matrixTransform(text.getScreenCTM());
      return put(text.cloneNode(true), place([at.x - area.left, at.y - area.top]));
    });
    const notes = filled(draw("g", { class: "annotation" }), said);
    const svg = filled(draw("svg", { class: "still", ...room, role: "img", "aria-label": "Draft tree" }), [edges, ...traces, notes]);
    for (const name of ["data-index", "data-unformatted", "data-math"]) {
      svg.querySelectorAll(`[${name}]`).forEach((element) => element.removeAttribute(name));
    }
    return svg;
  }

  function shift(element) {
    return /translate\((.*?)\)/.exec(element.getAttribute("transform"))[1].split(",").map(Number);
  }

  function round(number) {
    return Number(number.toFixed(3));
  }

  function make(tag, attributes = {}) {
    return put(document.createElement(tag), attributes);
  }

  function draw(tag, attributes) {
    return put(document.createElementNS(SVG, tag), attributes);
  }

  function put(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  function filled(element, children) {
    element.append(...children);
    return element;
  }
}
