// The choice of another pair: what the page was started with, pairs that can be loaded here, and why others cannot be.
// The server weighs them each time that the drawer opens, with the memory that is free by then.

const OWN = "as started";

// `change` takes the changed setting, `offers` asks the server: name, about, why (not), whether it is loaded, and the
// tree that others measured it with, which choosing it sets.
export function create({ name, title }, change, offers) {
  const list = make("div", {});
  const others = make("details", { class: "others" });
  const wait = make("p", { class: "help" });
  const row = make("fieldset", { class: "option pairs" }, make("legend", {}, title), wait, list, others);
  let chosen = OWN;
  let asked = 0;

  const show = (value) => {
    chosen = value ?? OWN;
    row.querySelectorAll("input").forEach((input) => (input.checked = input.value === chosen));
  };

  async function ask() {
    const number = ++asked;
    wait.textContent = "Weighing what fits this machine \u2026";
    const found = await offers().catch(() => null);
    if (number !== asked) return;
    wait.textContent = found ? "Loaded at its first run, which may take minutes." : "The server did not say what fits.";
    const fitting = (found ?? []).filter(({ why }) => !why);
    const rest = (found ?? []).filter(({ why }) => why);
    list.replaceChildren(
      label({ name: OWN, about: "the pair that this page was started with", state: "" }),
      ...fitting.map(label));
    others.hidden = rest.length === 0;
    others.replaceChildren(
      make("summary", {}, `${rest.length} more, which cannot be loaded here`),
      ...rest.map(({ name: pair, why }) => make("p", { class: "help" }, make("b", {}, pair), ` ${why}`)));
    show(chosen);
  }

  function label({ name: pair, about, state, tree }) {
    const input = make("input", { type: "radio", name: `option-${name}`, value: pair });
    input.addEventListener("change", () => change({ ...tree, [name]: pair }));
    return make("label", { class: "choice" }, input, make("b", {}, pair), make("span", {}, state ? `${state}; ${about}` : about));
  }

  others.hidden = true;
  // Chooses a pair by its name, if it is offered and can be loaded; options that are `given` stay.
  async function choose(pair, given) {
    const offer = pair && (await offers().catch(() => [])).find((one) => one.name === pair && !one.why);
    if (offer) change({ ...offer.tree, ...given, [name]: pair });
  }

  return { row, show, refuse: () => {}, ask, choose };
}

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}
