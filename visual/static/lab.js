// One experiment's result. Views are made in Python; every text of a model enters the page as textContent, and labels
// inside figures were escaped there.

const ROW_PIXELS = 40;
const VERDICTS = { drafted: "drafted and taken", target: "the target had to say it", first: "came with the prompt" };

export function mount({ element, props, watch, modules, choose }) {
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
    section(".forced-token", view.forced_token, (answers) => showForcedToken(find, answers, choose));
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

// Two answers beside each other. A word of the original opens its alternatives; choosing one goes on from it.
function showForcedToken(find, { ids, words, position, rejoined, other }, choose) {
  const options = find(".options");
  options.replaceChildren();
  const buttons = words.map(({ text }, number) => {
    const button = make("button", number === position ? "said forced" : "said", text.trimStart() || "␣", { type: "button" });
    button.addEventListener("click", () => open(number));
    return button;
  });
  // Spaces are between the buttons, where a line may break.
  const spaced = buttons.flatMap((button, number) => (words[number].text.startsWith(" ") ? [" ", button] : [button]));
  const tellings = [telling("The answer: choose a word", spaced)];
  if (other) {
    const kept = other.map((text, number) => make("span", kind(number), text));
    tellings.push(telling("With the forced word", kept));
  }
  find(".tellings").replaceChildren(...tellings);

  function kind(number) {
    if (number === position) return "forced";
    return number < position || number >= other.length - rejoined ? "same" : "new";
  }

  function open(number) {
    buttons.forEach((button, at) => button.classList.toggle("chosen", at === number));
    const question = make("p", "", `Instead of “${words[number].text.trim()}”, say:`);
    const choices = words[number].options.map(({ token, text, chances }) => {
      const button = make("button", "option", "", { type: "button" });
      button.append(make("b", "", text), make("small", "", chances));
      button.addEventListener("click", () => choose([...ids.slice(0, number), token]));
      return button;
    });
    const row = make("div", "choices");
    row.append(...choices);
    options.replaceChildren(question, row);
  }
}

function telling(title, parts) {
  const article = make("article", "");
  const words = make("p", "telling");
  words.append(...parts);
  article.append(make("h4", "", title), words);
  return article;
}

function make(tag, className, text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { className, textContent: text, ...rest });
}
