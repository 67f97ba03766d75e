// Does it pay for me? What a visitor's passes cost, and what recorded trees would be worth there.

const NAMES = { one: "a token", many: "20 guesses", level: "a level of the draft", reading: "reading", drafting: "the draft's reading", tokens: "the answer" };
const POINTS = 48; // of a curve
const SAME = 0.005; // speed-ups this near to 1 are none
const WHOLE = ["reading", "drafting", "tokens"]; // only "in all" needs them
const UNMEASURED = "The run on show has not both a target alone and a draft to measure: choose costs, or enter your own.";

export function create(root, { player, modules, plotly, pays }) {
  const math = modules.pays_math;
  const card = root.querySelector(".pays");
  const find = (selector) => card.querySelector(selector);
  const [preset, body, note] = [find(".pays-preset"), find("tbody"), find(".pays-note")];
  const fields = [...card.querySelectorAll("[data-cost]")];
  const owns = [...card.querySelectorAll("[data-own]")];
  let data = { rules: [], presets: [], published: [], starts: [], source: "", toy: "" }; // what came with the page
  let shown = null; // the run on show: { costs, steps, pair }
  let bench = null; // the report that was opened: { costs, rules }
  let file = null; // the race file that was opened: { costs, sets, pair }
  let from = "run"; // where the costs come from: "run", the number of a preset, "bench", "file" or "own"
  let costs = {};
  let entered = new Set(); // names of costs that a visitor changed since a source was taken
  let wanted = "run"; // the trees that were asked for; the first there are where they are missing
  let near = false; // whether the curve is nearly in sight: it is far down, and to draw it slows the page's start
  let late = null; // the trees whose curve waits for that

  new IntersectionObserver((seen) => {
    near = seen.at(-1).isIntersecting;
    if (near && late) draw(late);
  }, { rootMargin: "300px" }).observe(find(".pays-curve"));
  modules.files.unpacked(pays).then((text) => {
    data = JSON.parse(text);
    for (const rule of data.rules) rule.steps = rule.steps.map(([widths, guesses, emitted]) => ({ levels: widths.length, guesses, emitted }));
    card.hidden = false;
    find(".pays-starts").replaceChildren(...startsOf(data));
    refresh();
  });
  preset.addEventListener("change", () => take(preset.value));
  for (const field of fields) field.addEventListener("input", () => {
    costs = { ...costs, [field.dataset.cost]: field.value.trim() === "" ? undefined : Number(field.value) };
    if (from !== "own") entered = new Set();
    entered.add(field.dataset.cost);
    from = "own";
    refresh();
  });
  for (const field of owns) field.addEventListener("input", () => {
    if (ownStep()) wanted = "own";
    refresh();
  });
  body.addEventListener("change", (event) => {
    wanted = event.target.value;
    tell();
  });
  find("textarea").addEventListener("input", (event) => event.target.value.trim() && open(event.target.value));
  find("[type=file]").addEventListener("change", async ({ target }) => {
    const [chosen] = target.files;
    if (chosen) open(chosen.size > math.MAX_RACE ? " ".repeat(math.MAX_RACE + 1) : await chosen.text());
  });

  // A file that cannot be read changes nothing but its note.
  function open(text) {
    let found = null;
    try {
      found = math.readFile(text);
    } catch (refusal) {
      note.textContent = `This report cannot be used: ${refusal.message}.`;
      return;
    }
    ({ bench = bench, race: file = file } = found);
    if (found.race) {
      note.textContent = file.costs ? "Read: trees and costs are those of the file." : "Read: steps are those of the file; it has no target alone to measure, so costs stay.";
      wanted = "file-0";
      if (file.costs) take("file");
      else refresh();
      return;
    }
    note.textContent = bench.rules.length ? "Read: costs and trees are those of the report."
      : "Read, but it is of an older bench: it does not tell what levels and guesses cost, so those two stay.";
    take("bench");
  }

  // Costs of one source. What it lacks is empty, except after an older report; an answer keeps its length.
  function take(place) {
    from = place;
    const known = { run: shown?.costs, bench: bench?.costs, file: file?.costs }[place] ?? presets()[place];
    if (!known) costs = place === "run" ? {} : costs;
    else costs = { ...(place === "bench" ? costs : { tokens: costs.tokens }), ...Object.fromEntries(Object.keys(NAMES).flatMap((name) => (known[name] == null ? [] : [[name, known[name]]]))) };
    if (known?.step) for (const field of owns) field.value = known.step[field.dataset.own];
    if (known?.step) wanted = "own";
    refresh();
  }

  const presets = () => [...data.presets, ...data.published];

  // The mean step that was entered; null without a τ.
  function ownStep() {
    const [emitted, guesses, levels] = owns.map(({ value }) => (value.trim() === "" ? NaN : Number(value)));
    return owns[0].value.trim() === "" ? null : { emitted, guesses, levels };
  }

  // Sets of trees: of the run on show, a file, an entered τ, and of the rules that came with the page or with a report.
  // `whose` begins a sentence's "… tokens a pass".
  function trees() {
    const ours = (pair) => (pair === data.toy || pair.startsWith(`${data.toy}-`) ? "the toy's" : null);
    const run = shown?.steps ? [{ key: "run", name: "this run", help: "the one on show above", steps: shown.steps, whose: ours(shown.pair) ?? "this run's" }] : [];
    const files = (file?.sets ?? []).map((set, place) => ({ ...set, key: `file-${place}`, help: "", whose: ours(file.pair) ?? "your file's" }));
    const step = ownStep();
    const own = step ? [{ key: "own", name: "my own τ", help: "entered on the left", steps: [step], whose: "your" }] : [];
    const given = bench?.rules.length ? bench.rules : data.rules;
    const rules = given.map((rule) => ({ ...rule, key: rule.name, rule: true, whose: given === data.rules ? "the toy's" : "your report's" }));
    return [...run, ...files, ...own, ...rules];
  }

  const chosen = (list) => list.find(({ key }) => key === wanted) ?? list[0];

  function refresh() {
    const options = [
      ...(shown?.costs ? [["run", "the run on show, as measured"]] : from === "run" ? [["run", "the run on show: nothing to measure"]] : []),
      ...presets().map(({ name, source }, number) => [String(number), source ? `published: ${name}` : name]),
      ...(bench ? [["bench", "the report that was opened"]] : []),
      ...(file?.costs ? [["file", "the race file that was opened"]] : []),
      ["own", "my own"],
    ];
    preset.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === from)));
    cite(presets()[from]);
    for (const field of fields) {
      const value = costs[field.dataset.cost];
      const valid = fits(field.dataset.cost, value);
      field.setAttribute("aria-invalid", String(!valid && value !== undefined));
      if (document.activeElement !== field) field.value = valid ? Number(value.toPrecision(3)) : value === undefined ? "" : field.value;
    }
    fill(trees());
    tell();
  }

  // Where published costs come from, or which of one's own are still another source's.
  function cite(published) {
    const place = find(".pays-published");
    const kept = Object.keys(NAMES).filter((name) => from === "own" && costs[name] !== undefined && !entered.has(name));
    if (kept.length && entered.size) return place.replaceChildren(`Not yours yet, still as before: ${kept.map((name) => NAMES[name]).join(", ")}.`);
    if (!published?.source) return place.replaceChildren();
    const link = Object.assign(document.createElement("a"), { href: published.source, target: "_blank", rel: "noopener", textContent: published.source.replace("https://", "") });
    return place.replaceChildren("Not measured by us: ", link, `, ${published.where}, ${published.date}. What it lacks is empty.`);
  }

  // Rows stay as they are while their values change, so that the keyboard keeps its place.
  function fill(list) {
    if ([...body.rows].map((row) => row.dataset.key).join() !== list.map(({ key }) => key).join()) body.replaceChildren(...list.map(rowOf));
    list.forEach((tree, place) => {
      const [, ...cells] = body.rows[place].cells;
      const { tau, speedup, inAll, breakEven } = math.priced(tree.steps, costs);
      const right = !wrong() && !question(tree);
      const texts = [Number.isFinite(tau) ? tau.toFixed(1) : "–", ...(right ? [times(speedup), whole() ? times(inAll) : "–", breakEven.toFixed(1)] : ["–", "–", "–"])];
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
    const list = trees();
    const tree = chosen(list);
    const name = wrong();
    const asked = tree && !name && question(tree);
    const priced = tree && !name && !asked;
    find(".pays-curve").hidden = !priced;
    find(".pays-verdict").textContent = !tree ? "" : name ? missing(name) : asked ? `Please check: ${asked}` : verdict(tree);
    find(".pays-gain").textContent = priced ? gain(tree, list) : "";
    find(".pays-source").textContent = source();
    if (priced) draw(tree);
  }

  // The first cost that is missing or impossible; what only "in all" needs may be empty.
  const wrong = () => Object.keys(NAMES).find((name) => !fits(name, costs[name]) && !(WHOLE.includes(name) && costs[name] === undefined));
  const whole = () => WHOLE.every((name) => fits(name, costs[name]));
  const question = (tree) => (tree.key === "own" && math.stepQuestion(tree.steps[0])) || math.questionOf(tree.steps, costs);

  function missing(name) {
    if (from === "run" && !shown?.costs) return UNMEASURED;
    return `Enter what ${NAMES[name]} ${name === "tokens" ? "has, at least 1 token" : "takes, a number from 0 on"}.`;
  }

  // What the trees buy against the chain of the same prompts, or against the target alone.
  function gain(tree, list) {
    const chain = tree.rule && tree.key !== "chain" && list.find(({ key }) => key === "chain");
    const side = (steps) => math.sideOf(steps, costs.level);
    return `Against ${chain ? "the chain" : "the target alone"}: ${math.gainSentence(chain ? side(chain.steps) : math.ALONE, side(tree.steps), costs, "at these costs")}`;
  }

  function verdict(tree) {
    const { tau, speedup, breakEven, inAll, alone, together } = math.priced(tree.steps, costs);
    const brought = `${tree.whose} ${tau.toFixed(1)} tokens a pass${tree.rule ? ` (${tree.name})` : ""}`;
    const edge = `${breakEven.toFixed(1)} tokens a pass`;
    const other = tree.whose === "the toy's" && from !== "run" ? " Your models bring other trees: enter their tokens a pass below." : "";
    const known = whole();
    const answer = known ? `an answer takes ${duration(together)}, with the target alone ${duration(alone)}` : "what reading takes is left out";
    const ratio = known ? inAll : speedup;
    if (Math.abs(ratio - 1) <= SAME) return `It makes no difference to you with ${brought}: ${answer}. Drafting pays above ${edge}.${other}`;
    if (ratio > 1) return `It pays for you with ${brought}: ${asFast(speedup)} while answering${known ? `, ${times(inAll)} in all` : ""}; ${answer}. Drafting stops paying below ${edge}.${other}`;
    if (speedup <= 1) return `It does not pay for you with ${brought}: ${answer}. Drafting pays only above ${edge}.${other}`;
    const least = Math.ceil(math.shortestAnswer(speedup, costs));
    return `It does not pay for answers this short with ${brought}: ${asFast(speedup)} while answering, but the draft reads the picture too; ${answer}. It pays from ${least.toLocaleString("en")} tokens an answer on.${other}`;
  }

  // Whose trees, and so whose τ.
  function source() {
    const own = shown?.steps ? "This run: its own trees. " : "";
    const rules = bench?.rules.length ? "Rules: the mean trees of the report that was opened."
      : `Rules: trees of ${data.source}; yours will differ, and a race file of your own models brings theirs. Cost-aware would grow other trees at other costs.`;
    return `${own}${rules} A level of the draft is taken to cost the same at any width, and each guess to add the same to a pass.`;
  }

  // Speed-up against the one cost that a choice of draft decides.
  async function draw(tree) {
    late = near ? null : tree;
    if (late) return;
    const library = await plotly();
    const dearest = math.dearestLevel(tree.steps, costs);
    const most = Math.max(2 * costs.level, Math.min(1.3 * dearest, 8 * (costs.level || costs.one / 8))) || 1;
    const x = Array.from({ length: POINTS + 1 }, (_, point) => (most * point) / POINTS);
    const at = (level) => math.priced(tree.steps, { ...costs, level });
    const all = whole();
    const line = (name, dash, read) => ({ x, y: x.map((level) => read(at(level))), name, mode: "lines", hovertemplate: "%{y:.2f}×, level %{x:.2f} ms", line: { dash, width: 2.5, color: "#0072B2" } });
    const here = at(costs.level);
    const top = 1.08 * Math.max(1.2, at(0).speedup);
    const point = { x: [costs.level, costs.level], y: [here.speedup, all ? here.inAll : null], name: "you", mode: "markers", marker: { size: 11, color: ["#0072B2", "rgba(0,0,0,0)"], line: { color: "#0072B2", width: 2.5 } }, hovertemplate: "%{y:.2f}×" };
    const axis = { zeroline: false, fixedrange: true, gridcolor: "rgba(139,144,150,0.25)", ticks: "", automargin: true };
    const text = (more) => ({ showarrow: false, font: { size: 12 }, ...more });
    library.react(find(".pays-curve"), [line("while answering", "solid", (one) => one.speedup), ...(all ? [line("in all", "dot", (one) => one.inAll)] : []), point], {
      height: 270, margin: { l: 46, r: 12, t: 26, b: 44 }, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: { ...axis, range: [0, most], title: { text: "one level of the draft, ms" } }, yaxis: { ...axis, range: [0, top], ticksuffix: "×", title: { text: "speed-up" } },
      shapes: [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 1, fillcolor: "rgba(213,94,0,0.13)", line: { width: 0 }, layer: "below" }],
      annotations: [
        text({ text: "slower than alone", xref: "paper", x: 0.99, y: 0, xanchor: "right", yanchor: "bottom" }),
        text({ text: `━ while answering${all ? "   ┅ in all" : ""}   ● you`, xref: "paper", yref: "paper", x: 0, y: 1.1, xanchor: "left" }),
      ],
    }, { responsive: true, displayModeBar: false });
  }

  // The run on show, once it is over; costs that a visitor entered stay.
  function end() {
    const lane = (name) => player.race.lane(name).map(({ frame }) => frame);
    const together = lane("speculative");
    const steps = math.stepsOf(together);
    const drafted = steps.some(({ guesses }) => guesses > 0);
    shown = { steps: drafted ? steps : null, costs: drafted ? math.measured(lane("target-only"), together) : null, pair: player.run.setting.split(" · ")[0] };
    if (from === "run") take("run");
    else refresh();
  }

  return { end };
}

const fits = (name, value) => Number.isFinite(value) && value < 1e9 && (name === "tokens" ? value >= 1 : name === "one" || name === "many" ? value > 0 : value >= 0);

// How to begin with models of one's own: commands, the guide, the code.
function startsOf({ starts, code }) {
  const make = (tag, text, rest = {}) => Object.assign(document.createElement(tag), { textContent: text, ...rest });
  const link = (path) => (code ? make("a", path, { href: `${code}/${path}`, target: "_blank", rel: "noopener" }) : make("code", path));
  return starts.map(({ name, commands, guide }) => {
    const article = make("article", "");
    const more = make("p", "Guide: ");
    more.append(link(guide), code ? "; " : ", among the files that specllava ships with.");
    if (code) more.append(make("a", "the code", { href: code, target: "_blank", rel: "noopener" }));
    const lines = make("pre", "", { tabIndex: 0 });
    lines.append(make("code", commands.join("\n")));
    article.append(make("h3", `Start with ${name}`), lines, more);
    return article;
  });
}

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
