// A against B on many prompts: the totals, and a table that can be sorted, whose rows open in the player. Numbers and
// totals are made in Python; texts enter the page as textContent.

const NAMES = { csv: ["specllava-a-against-b.csv", "text/csv"], md: ["specllava-a-against-b.md", "text/markdown"], zip: ["specllava-a-against-b.zip", "application/zip"] };
const SAME = { identical: "identical ✓", "near-tie": "near-tie", different: "different ✗", drawn: "drawn by chance" };
const WRITTEN = {
  text: (value) => value,
  whole: (value) => String(value),
  number: (value) => value.toFixed(2),
  change: (value) => `${value >= 1.0005 ? "+" : value < 0.9995 ? "−" : ""}${Math.abs(100 * (value - 1)).toFixed(1)} %`,
  same: (value) => SAME[value],
};

// `open([id, row])` asks for the pair of a row, counted from 0.
export function mount({ element, props, watch, modules, open }) {
  const { files, pays_math: math, tables } = modules;
  const root = element.querySelector(".against-result");
  const find = (selector) => root.querySelector(selector);
  let view = null;
  let order = { key: "number", down: false }; // stays while rows come in

  find(".table-scroll").addEventListener("click", ({ target }) => {
    const key = target.closest("[data-key]")?.dataset.key;
    const row = target.closest("tr[data-row]")?.dataset.row;
    if (key) sort(key);
    else if (row) open([view.id, Number(row)]);
  });
  find(".against-files").addEventListener("click", ({ target }) => target.dataset.file && (target.dataset.file === "copy" ? copy() : save(target.dataset.file)));
  watch("value", show);
  show();

  function show() {
    if (!props.value) return;
    view = JSON.parse(props.value);
    root.hidden = false;
    find(".versus-sides").replaceChildren(...[["A", view.a], ["B", view.b]].flatMap(([name, side]) => [make("dt", name), make("dd", side)]));
    find(".against-lines").replaceChildren(...[...view.lines, ...bought()].map((line) => make("li", line)));
    find(".against-files").hidden = !view.files?.csv;
    table();
  }

  // What B's trees buy against A's, where both have costs in common.
  function bought() {
    if (!view.gain) return [];
    const { sides: [a, b], costs } = view.gain;
    return [`B against A: ${math.gainSentence(a, b, costs)}`];
  }

  function sort(key) {
    order = { key, down: order.key === key && !order.down };
    table();
    find(`[data-key="${key}"]`).focus();
  }

  function table() {
    const made = document.createElement("table");
    const head = made.createTHead().insertRow();
    for (const [title, key, kind] of view.columns) {
      const cell = make("th", "", { scope: "col", className: `cell-${kind}` });
      const now = key === order.key;
      cell.setAttribute("aria-sort", now ? (order.down ? "descending" : "ascending") : "none");
      const button = make("button", `${title}${now ? (order.down ? " ↓" : " ↑") : ""}`, { type: "button" });
      button.dataset.key = key;
      cell.append(button);
      head.append(cell);
    }
    const body = made.createTBody();
    for (const [row, record] of sorted([...view.rows.entries()])) body.append(line(row, record));
    find(".table-scroll").replaceChildren(made);
  }

  function sorted(entries) {
    const { key, down } = order;
    const value = ([, record]) => record[key];
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    return entries.sort((a, b) => {
      if (value(a) === null || value(b) === null) return (value(a) === null) - (value(b) === null); // last, either way
      return (down ? -1 : 1) * compare(value(a), value(b));
    });
  }

  function line(row, record) {
    const tr = document.createElement("tr");
    tr.dataset.row = row;
    for (const [, key, kind] of view.columns) {
      const text = record[key] === null ? "–" : WRITTEN[kind](record[key]);
      const cell = tr.insertCell();
      if (key === "prompt") cell.append(make("button", text, { type: "button", title: "Open both runs in the player" }));
      else cell.textContent = text;
      cell.className = `cell-${kind}`;
    }
    return tr;
  }

  async function copy() {
    const done = await tables.copied(tables.pasteOf(tables.readTable(find("table"))));
    find(".table-said").textContent = done ? "Copied." : "This browser lends no clipboard here: save the CSV instead.";
  }

  function save(kind) {
    const [name, type] = NAMES[kind];
    const content = kind === "zip" ? Uint8Array.from(atob(view.files.zip), (letter) => letter.charCodeAt(0)) : view.files[kind];
    files.save(new Blob([content], { type }), type, name);
  }
}

function make(tag, text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { textContent: text, ...rest });
}
