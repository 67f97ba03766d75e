// One experiment's result. Views are made in Python; every text of a model enters the page as textContent, and labels
// inside figures were escaped there.

const ROW_PIXELS = 40;
const VERDICTS = { drafted: "drafted and taken", target: "the target had to say it", first: "came with the prompt" };

export function mount({ element, props, watch, modules }) {
  const { charts, player, compared } = modules;
  const root = element.querySelector(".lab-result");
  const find = (selector) => root.querySelector(selector);
  const plotly = () => player.loadPlotly(new URL(`gradio_api/file=${props.plotly}`, document.baseURI).href);
  let view = null;

  find("details").addEventListener("toggle", fillTable);
  watch("value", show);
  show();

  async function show() {
    if (!props.value) return;
    view = JSON.parse(props.value);
    root.hidden = false;
    find(".answer").textContent = view.answer;
    section(".gloss", view.gloss, showGloss);
    section(".closeups", view.closeups, showCloseups);
    if (view.grounding) document.dispatchEvent(new CustomEvent("grounded", { detail: view.grounding }));
    fillTable();
    charts.drawPlots(await plotly(), find(".plots"), view.figures);
  }

  function section(selector, part, fill) {
    find(selector).hidden = !part;
    if (part) fill(part);
  }

  function fillTable() {
    if (view && find("details").open) find(".table-scroll").replaceChildren(charts.tableOf(view.columns, view.rows));
  }

  function showGloss({ names, scale, ceiling, words }) {
    const rows = make("span", "", "from top to bottom: ");
    rows.append(make("b", "", names.join(" · ")));
    const bar = make("i", "gloss-scale");
    const ends = make("span", "", `${scale}: 0 `);
    ends.append(bar, `${ceiling.toFixed(0)}+ nats`);
    find(".gloss-key").replaceChildren(rows, ends, make("span", "", "× the target had to say it itself"));
    find(".gloss-words").replaceChildren(...words.map((word) => compared.markedWord({ ...word, marks: word.marks.map(verdictMark) })));
  }

  function showCloseups(closeups) {
    const buttons = closeups.map(({ name }) => make("button", "", name, { type: "button" }));
    buttons.forEach((button, place) => button.addEventListener("click", () => pick(place)));
    find(".places").replaceChildren(...buttons);
    pick(0);

    async function pick(place) {
      buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(number === place)));
      find(".before").textContent = `Trees after “${closeups[place].before}”`;
      const { trees } = closeups[place];
      const cards = trees.map(compared.treeCard);
      find(".pair").replaceChildren(...cards.map(({ card }) => card));
      const library = await plotly();
      trees.forEach(({ figure }, number) => {
        const { rows, width } = figure.layout.meta;
        compared.drawTree(library, cards[number].chart, { ...figure, height: rows * ROW_PIXELS, width });
      });
    }
  }
}

function verdictMark({ share, verdict, title }) {
  return { share, sign: verdict === "target" ? "×" : "", title: `${title}; ${VERDICTS[verdict]}` };
}

function make(tag, className, text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { className, textContent: text, ...rest });
}
