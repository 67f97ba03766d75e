// The whole run in charts, one question at a time. Figures, answers and tables are made in Python; model text enters
// the page as textContent, and inside a figure it was escaped there.

export function createCharts(root, plotlyReady) {
  const card = root.querySelector(".charts");
  const tabs = card.querySelector(".questions");
  const panel = card.querySelector(".answer-panel");
  const plots = card.querySelector(".plots");
  const details = card.querySelector("details.table");
  let shown = [];
  let chosen = 0; // stays from run to run, so that runs can be compared

  tabs.addEventListener("click", (event) => event.target.dataset.chart && choose(Number(event.target.dataset.chart)));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((chosen + step + shown.length) % shown.length);
    tabs.children[chosen].focus();
  });
  details.addEventListener("toggle", () => shown.length && fillTable());

  function show(charts) {
    shown = charts;
    card.hidden = !charts.length;
    tabs.replaceChildren(...charts.map(({ question }, number) => tab(question, number)));
    if (charts.length) choose(Math.min(chosen, charts.length - 1));
  }

  async function choose(number) {
    chosen = number;
    [...tabs.children].forEach((button, place) => {
      button.setAttribute("aria-selected", String(place === number));
      button.tabIndex = place === number ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `question-${number}`);
    panel.querySelector(".answer").textContent = shown[number].answer;
    if (details.open) fillTable();
    placePlots(plots, shown[number].figures); // at once, so that nothing below moves when they are drawn
    const plotly = await plotlyReady();
    (window.requestIdleCallback ?? setTimeout)(() => draw(plotly)); // the tree comes first: it is what one sees
  }

  function draw(plotly) {
    drawPlots(plotly, plots, shown[chosen]?.figures ?? []);
  }

  function tab(question, number) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: question, id: `question-${number}` });
    button.dataset.chart = number;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", "answer-panel");
    return button;
  }

  function fillTable() {
    details.querySelector(".table-scroll").replaceChildren(tableOf(shown[chosen].columns, shown[chosen].rows));
  }

  return { show };
}

// Figures side by side in `plots`; elements stay from call to call, so that nothing flickers.
export function drawPlots(plotly, plots, figures) {
  placePlots(plots, figures);
  figures.forEach(({ data, layout }, place) => plotly.react(plots.children[place], data, layout, { responsive: true, displayModeBar: false }));
}

function placePlots(plots, figures) {
  while (plots.children.length < figures.length) plots.append(Object.assign(document.createElement("div"), { className: "chart" }));
  [...plots.children].forEach((plot, place) => { plot.hidden = place >= figures.length; });
}

export function tableOf(columns, rows) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of columns) head.append(Object.assign(document.createElement("th"), { textContent: name, scope: "col" }));
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().textContent = cell;
  }
  return table;
}
