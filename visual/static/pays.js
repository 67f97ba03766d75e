// Does it pay for me? What a visitor's passes cost, and what recorded trees would be worth there.

const NAMES = { one: "a token", many: "20 guesses", level: "a level of the draft", reading: "reading", drafting: "the draft's reading", tokens: "the answer" };
const POINTS = 48; // of a curve
const SAME = 0.005; // speed-ups this near to 1 are none

export function create(root, { player, modules, plotly, pays }) {
  const math = modules.pays_math;
  const card = root.querySelector(".pays");
  const find = (selector) => card.querySelector(selector);
  const [preset, body, note] = [find(".pays-preset"), find("tbody"), find(".pays-note")];
  const fields = [...card.querySelectorAll("[data-cost]")];
  let data = { rules: [], presets: [], source: "" }; // what came with the page
  let shown = null; // the run on show: { costs, steps }
  let bench = null; // the report that was pasted: { costs, rules }
  let from = "run"; // where the costs come from: "run", the number of a preset, "bench" or "own"
  let costs = {};
  let wanted = "run"; // the trees that were asked for; the first there are where they are missing

  modules.files.unpacked(pays).then((text) => {
    data = JSON.parse(text);
    for (const rule of data.rules) rule.steps = rule.steps.map(([widths, guesses, emitted]) => ({ levels: widths.length, guesses, emitted }));
    card.hidden = false;
    refresh();
  });
  preset.addEventListener("change", () => take(preset.value));
  for (const field of fields) field.addEventListener("input", () => {
    costs = { ...costs, [field.dataset.cost]: field.value.trim() === "" ? NaN : Number(field.value) };
    from = "own";
    refresh();
  });
  body.addEventListener("change", (event) => {
    wanted = event.target.value;
    tell();
  });
  find("textarea").addEventListener("input", (event) => event.target.value.trim() && open(event.target.value));
  find("[type=file]").addEventListener("change", async ({ target }) => {
    const [file] = target.files;
    if (file) open(file.size > math.MAX_REPORT ? " ".repeat(math.MAX_REPORT + 1) : await file.text());
  });

  // A report that cannot be read changes nothing but its note.
  function open(text) {
    try {
      bench = math.readBench(text);
    } catch (refusal) {
      note.textContent = `This report cannot be used: ${refusal.message}.`;
      return;
    }
    note.textContent = bench.rules.length ? "Read: costs and trees are those of the report."
      : "Read, but it is of an older bench: it does not tell what levels and guesses cost, so those two stay.";
    take("bench");
  }

  function take(place) {
    from = place;
    const known = { run: shown?.costs, bench: bench?.costs }[place] ?? data.presets[place];
    costs = { ...costs, ...known };
    refresh();
  }

  // Sets of trees: of the run on show, and of the rules that came with the page or with a report.
  function trees() {
    const own = shown ? [{ key: "run", name: "this run", help: "the one on show above", steps: shown.steps }] : [];
    const rules = (bench?.rules.length ? bench : data).rules;
    return [...own, ...rules.map((rule) => ({ ...rule, key: rule.name }))];
  }

  const chosen = (list) => list.find(({ key }) => key === wanted) ?? list[0];

  function refresh() {
    const options = [
      ...(shown?.costs ? [["run", "the run on show, as measured"]] : []),
      ...data.presets.map(({ name }, number) => [String(number), name]),
      ...(bench ? [["bench", "the report that was pasted"]] : []),
      ["own", "my own"],
    ];
    preset.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === from)));
    if (!preset.selectedOptions.length) preset.value = "own";
    for (const field of fields) {
      const value = costs[field.dataset.cost];
      const valid = fits(field.dataset.cost, value);
      field.setAttribute("aria-invalid", String(!valid && value !== undefined));
      if (document.activeElement !== field) field.value = valid ? Number(value.toPrecision(3)) : field.value;
    }
    fill(trees());
    tell();
  }

  // Rows stay as they are while their values change, so that the keyboard keeps its place.
  function fill(list) {
    const right = complete();
    if ([...body.rows].map((row) => row.dataset.key).join() !== list.map(({ key }) => key).join()) body.replaceChildren(...list.map(rowOf));
    list.forEach((tree, place) => {
      const [, ...cells] = body.rows[place].cells;
      const { tau, speedup, inAll, breakEven } = math.priced(tree.steps, costs);
      const texts = right ? [tau.toFixed(1), times(speedup), times(inAll), breakEven.toFixed(1)] : [tau.toFixed(1), "–", "–", "–"];
      texts.forEach((text, column) => (cells[column].textContent = text));
      [speedup, inAll].forEach((value, column) => cells[column + 1].classList.toggle("loses", right && value < 1 - SAME));
      body.rows[place].querySelector("input").checked = tree === chosen(list);
    });
  }

  function rowOf({ key, name, help }) {
    const row = document.createElement("tr");
    row.dataset.key = key;
    const label = document.createElement("label");
    const radio = Object.assign(document.createElement("input"), { type: "radio", name: "pays-trees", value: key });
    label.append(radio, Object.assign(document.createElement("span"), { textContent: name }), Object.assign(document.createElement("small"), { textContent: help }));
    row.append(Object.assign(document.createElement("th"), { scope: "row" }), ...Array.from({ length: 4 }, () => document.createElement("td")));
    row.cells[0].append(label);
    return row;
  }

  function tell() {
    const tree = chosen(trees());
    const wrong = Object.keys(NAMES).find((name) => !fits(name, costs[name]));
    find(".pays-curve").hidden = !tree || wrong !== undefined;
    find(".pays-verdict").textContent = !tree ? "" : wrong === undefined ? verdict(tree) : `Enter what ${NAMES[wrong]} ${wrong === "tokens" ? "has, at least 1 token" : "takes, a number from 0 on"}.`;
    find(".pays-source").textContent = source();
    if (tree && wrong === undefined) draw(tree);
  }

  const complete = () => Object.keys(NAMES).every((name) => fits(name, costs[name]));

  function verdict(tree) {
    const found = math.priced(tree.steps, costs);
    const { tau, speedup, breakEven, inAll, alone, together } = found;
    const edge = `${breakEven.toFixed(1)} tokens per target pass, and ${tree.key === "run" ? "this run's trees" : `the trees of ${tree.name}`} bring ${tau.toFixed(1)}`;
    const answer = `an answer takes ${duration(together)}, with the target alone ${duration(alone)}`;
    if (Math.abs(inAll - 1) <= SAME) return `It makes no difference to you: ${answer}. Drafting pays above ${edge}.`;
    if (inAll > 1) return `It pays for you: ${asFast(speedup)} while answering, ${times(inAll)} in all; ${answer}. Drafting stops paying below ${edge}.`;
    if (speedup <= 1) return `It does not pay for you: ${answer}. Drafting pays only above ${edge}.`;
    const least = Math.ceil(math.shortestAnswer(speedup, costs));
    return `It does not pay for answers this short: ${asFast(speedup)} while answering, but the draft reads the picture too; ${answer}. It pays from ${least.toLocaleString("en")} tokens an answer on.`;
  }

  // Whose trees, and so whose τ.
  function source() {
    const own = shown ? "This run: its own trees. " : "";
    const rules = bench?.rules.length ? "Rules: the mean trees of the report that was pasted."
      : `Rules: trees of ${data.source}; yours will differ, and a race file of your own models brings theirs. Cost-aware would grow other trees at other costs.`;
    return `${own}${rules} A level of the draft is taken to cost the same at any width, and each guess to add the same to a pass.`;
  }

  // Speed-up against the one cost that a choice of draft decides.
  async function draw(tree) {
    const library = await plotly();
    const dearest = math.dearestLevel(tree.steps, costs);
    const most = Math.max(2 * costs.level, Math.min(1.3 * dearest, 8 * (costs.level || costs.one / 8))) || 1;
    const x = Array.from({ length: POINTS + 1 }, (_, point) => (most * point) / POINTS);
    const at = (level) => math.priced(tree.steps, { ...costs, level });
    const line = (name, dash, read) => ({ x, y: x.map((level) => read(at(level))), name, mode: "lines", hovertemplate: "%{y:.2f}×, level %{x:.2f} ms", line: { dash, width: 2.5, color: "#0072B2" } });
    const here = at(costs.level);
    const top = 1.08 * Math.max(1.2, at(0).speedup);
    const point = { x: [costs.level, costs.level], y: [here.speedup, here.inAll], name: "you", mode: "markers", marker: { size: 11, color: ["#0072B2", "rgba(0,0,0,0)"], line: { color: "#0072B2", width: 2.5 } }, hovertemplate: "%{y:.2f}×" };
    const axis = { zeroline: false, fixedrange: true, gridcolor: "rgba(139,144,150,0.25)", ticks: "", automargin: true };
    const text = (more) => ({ showarrow: false, font: { size: 12 }, ...more });
    library.react(find(".pays-curve"), [line("while answering", "solid", (one) => one.speedup), line("in all", "dot", (one) => one.inAll), point], {
      height: 270, margin: { l: 46, r: 12, t: 26, b: 44 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: { ...axis, range: [0, most], title: { text: "one level of the draft, ms" } }, yaxis: { ...axis, range: [0, top], ticksuffix: "×", title: { text: "speed-up" } },
      shapes: [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 1, fillcolor: "rgba(213,94,0,0.13)", line: { width: 0 }, layer: "below" }],
      annotations: [
        text({ text: "slower than alone", xref: "paper", x: 0.99, y: 0, xanchor: "right", yanchor: "bottom" }),
        text({ text: "━ while answering   ┅ in all   ● you", xref: "paper", yref: "paper", x: 0, y: 1.1, xanchor: "left" }),
      ],
    }, { responsive: true, displayModeBar: false });
  }

  // The run on show, once it is over; costs that a visitor entered stay.
  function end() {
    const lane = (name) => player.race.lane(name).map(({ frame }) => frame);
    const together = lane("speculative");
    const steps = math.stepsOf(together);
    shown = steps.some(({ guesses }) => guesses > 0) ? { steps, costs: math.measured(lane("target-only"), together) } : null;
    if (from === "run" && shown?.costs) take("run");
    else refresh();
  }

  return { end };
}

const fits = (name, value) => Number.isFinite(value) && value < 1e9 && (name === "tokens" ? value >= 1 : name === "one" || name === "many" ? value > 0 : value >= 0);

// As in the headline: what rounds to 1.0 is neither faster nor slower.
function times(ratio) {
  const factor = Math.max(ratio, 1 / ratio).toFixed(1);
  if (factor === "1.0") return "as fast";
  return `${factor}×${ratio > 1 ? "" : " slower"}`;
}

const asFast = (ratio) => times(ratio).replace(/×$/, "× as fast");

function duration(milliseconds) {
  if (milliseconds >= 9995) return `${(milliseconds / 1000).toFixed(1)} s`;
  if (milliseconds >= 999.5) return `${(milliseconds / 1000).toFixed(2)} s`;
  return `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
}
