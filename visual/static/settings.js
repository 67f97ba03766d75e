// The settings: a drawer with presets and a control for each option. Options, ranges and words are made in Python from
// DecodingConfig; which options count for now, and the summary of them, is asked of the server after every change.

const MANY = 150; // milliseconds in which changes reach the server as one
const NAMED = "set-"; // before an option's name in the address
const LONGEST = 2000; // characters of a value in an address

export function mount({ element, props, watch, server }) {
  const root = element.querySelector(".settings");
  const find = (selector) => root.querySelector(selector);
  const drawer = find(".drawer");
  const controls = new Map(); // by the option's name: { row, show(value), refuse(why) }
  const defaults = props.value;
  let asked = 0;
  let soon = 0;

  const change = (changes) => {
    props.value = { ...props.value, ...changes };
    show();
    clearTimeout(soon);
    soon = setTimeout(tell, MANY);
  };

  find(".presets").append(...props.presets.map((preset) => presetButton(preset, () => change(kept(preset.changes, props.value)))));
  find(".options").append(...props.groups.map((group) => section(group, controls, { change })));
  find(".settings-open").addEventListener("click", () => drawer.showModal());
  find(".drawer-close").addEventListener("click", () => drawer.close());
  drawer.addEventListener("click", (event) => event.target === drawer && drawer.close()); // beside the drawer
  find(".drawer-run").addEventListener("click", run);
  watch("value", show);
  describe(props.described);
  const linked = addressed(props.groups, new URLSearchParams(location.search));
  if (Object.keys(linked).length) change(linked);
  show();

  function run() {
    drawer.close();
    document.querySelector(props.run).click();
  }

  function show() {
    for (const [name, control] of controls) control.show(props.value[name]);
    find(".presets").querySelectorAll("button").forEach((button, place) => {
      const chosen = Object.entries(kept(props.presets[place].changes, props.value)).every(([name, value]) => same(value, props.value[name]));
      button.setAttribute("aria-pressed", String(chosen));
    });
  }

  async function tell() {
    const number = ++asked;
    keepInAddress(props.groups, props.value, defaults);
    const described = await server.described(props.value).catch(() => null);
    if (described && number === asked) describe(described);
  }

  // Where a value is refused, the summary of the values before it would not be true: it says what is wrong.
  function describe({ summary, read, refused }) {
    for (const place of root.querySelectorAll(".summary")) {
      place.textContent = place.title = summary;
      place.classList.toggle("refused", Object.keys(refused).length > 0);
    }
    for (const [name, control] of controls) {
      control.row.hidden = !read.includes(name);
      control.refuse(refused[name] ?? "");
    }
  }
}

// Options of a link, as the form holds them; the server refuses what is none.
function addressed(groups, query) {
  const options = groups.flatMap(shared).filter(({ name }) => query.has(NAMED + name));
  return Object.fromEntries(options.map(({ name, bounds }) => {
    const value = query.get(NAMED + name).slice(0, LONGEST);
    return [name, bounds && value !== "" ? Number(value) : value];
  }));
}

function keepInAddress(groups, value, defaults) {
  const address = new URL(location.href);
  for (const { name } of groups.flatMap(shared)) {
    if (same(value[name], defaults[name])) address.searchParams.delete(NAMED + name);
    else address.searchParams.set(NAMED + name, value[name] ?? "");
  }
  history.replaceState(history.state, "", address);
}

// An address carries options, and no text of the visitor's.
const shared = ({ options }) => options.filter(({ lines }) => !lines);

// Presets are of the tree: whichever draft was chosen goes on guessing.
const kept = (changes, { drafter }) => (drafter?.startsWith("draft: ") ? { ...changes, drafter } : changes);

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function presetButton({ title, because }, choose) {
  const button = make("button", { type: "button", class: "preset" }, make("b", {}, title), make("span", {}, because));
  button.addEventListener("click", choose);
  return button;
}

function section({ title, options }, controls, { change }) {
  const rows = options.map((option) => {
    const control = option.choices ? choice(option, change) : typed(option, change);
    controls.set(option.name, control);
    return control.row;
  });
  return make("section", {}, make("h3", { class: "eyebrow" }, title), ...rows);
}

// One of a few names: a radio button each, with what it means.
function choice({ name, title, choices }, change) {
  const inputs = choices.map((one) => make("input", { type: "radio", name: `option-${name}`, value: one.name }));
  const labels = choices.map((one, place) =>
    make("label", { class: "choice" }, inputs[place], make("b", {}, one.title ?? one.name), make("span", {}, one.help)));
  inputs.forEach((input) => input.addEventListener("change", () => change({ [name]: input.value })));
  const row = make("fieldset", { class: "option" }, make("legend", {}, title), ...labels);
  return { row, show: (value) => inputs.forEach((input) => (input.checked = input.value === value)), refuse: refusal(row, inputs) };
}

// A number, with a slider over its usual range, several numbers with commas between them, or a text of several lines.
function typed({ name, title, help, bounds, usual, step, lines }, change) {
  const id = `option-${name}`;
  const field = make(lines ? "textarea" : "input", { id, "aria-describedby": `${id}-help`, ...(lines ? { rows: lines } : bounds ? { type: "number", step, min: bounds[0], max: bounds[1] } : { type: "text" }) });
  const slider = usual && make("input", { type: "range", min: usual[0], max: usual[1], step: usual[2], "aria-label": title });
  const read = (input) => (bounds ? (input.value === "" ? null : Number(input.value)) : input.value);
  for (const input of [field, slider].filter(Boolean)) input.addEventListener("input", () => change({ [name]: read(input) }));
  const row = make("div", { class: "option" }, make("label", { for: id }, title), make("code", {}, name), field, ...(slider ? [slider] : []),
    make("p", { class: "help", id: `${id}-help` }, help));
  const show = (value) => {
    if (field !== document.activeElement) field.value = value ?? "";
    if (slider) slider.value = value ?? usual[0];
  };
  return { row, show, refuse: refusal(row, [field]) };
}

function refusal(row, inputs) {
  const why = make("p", { class: "why", role: "alert" });
  row.append(why);
  return (text) => {
    why.textContent = text;
    inputs.forEach((input) => input.setAttribute("aria-invalid", String(text !== "")));
  };
}
