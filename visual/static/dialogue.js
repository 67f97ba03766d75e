// The turns of a dialogue: what was asked and answered, tokens per target pass, columns reused and read. A click on a
// turn shows its race; its frames are held here, so nobody is asked for them. Model text enters as textContent only.

const KEEP = -1; // instead of a turn's number: an edit is given up
const OVER = -2; // the next question begins a new dialogue

export function create(root, { frames, open, edit, live }) {
  const part = root.querySelector(".dialogue");
  const list = part.querySelector(".turns");
  const note = part.querySelector(".dialogue-note");
  const held = new Map(); // frames of finished turns, by number
  let name = null; // of the dialogue
  let turns = [];
  let shown = 0;
  let file = null; // the race file of the whole dialogue, packed
  let running = false;
  let edited = null;

  part.addEventListener("click", ({ target }) => {
    const turn = target.closest("[data-turn]")?.dataset.turn;
    if (turn !== undefined) return show(Number(turn));
    const asked = target.closest("[data-edit]")?.dataset.edit;
    if (asked === undefined) return;
    edit(Number(asked));
    if (Number(asked) === OVER) over();
    else change(Number(asked) === KEEP ? null : Number(asked));
  });
  part.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = [...list.querySelectorAll(".turn:enabled")];
    if (!step || !all.includes(event.target)) return;
    event.preventDefault();
    all[all.indexOf(event.target) + step]?.focus();
  });

  function begin(run) {
    if (run.dialogue !== name) held.clear();
    shown = run.turn ?? 0;
    if (!run.again) {
      name = run.dialogue;
      turns = [...(run.turns ?? []), { question: run.prompt }];
      for (const turn of [...held.keys()]) if (turn >= shown) held.delete(turn);
      running = true;
      edited = null;
    }
    if (!live && run.picture) document.querySelector("#picture img")?.setAttribute("src", run.picture);
    draw();
  }

  function end(frame) {
    if (running) {
      running = false;
      turns = frame.turns ?? turns;
      file = frame.file;
      for (const [turn, one] of Object.entries(frame.held ?? {})) held.set(Number(turn), one);
      held.set(shown, frames());
    }
    draw();
  }

  function show(turn) {
    if (turn === shown || running || !held.has(turn)) return;
    const [first, ...rest] = held.get(turn);
    const id = `${name}-${turn}-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
    open([JSON.stringify({ ...JSON.parse(first), live: false, again: true, id }), ...rest]);
  }

  // The words of the question come back from the server; only then are they changed.
  function change(turn) {
    edited = turn;
    draw();
    if (turn !== null) document.querySelector("#question textarea")?.focus();
  }

  function over() {
    turns = turns.slice(shown, shown + 1);
    held.clear();
    name = null;
    draw();
    document.querySelector("#question textarea")?.focus();
  }

  function draw() {
    part.hidden = turns.length < 2;
    if (part.hidden) return;
    const most = Math.max(...turns.map(({ tau }) => tau ?? 0), 1);
    const at = list.contains(document.activeElement) ? document.activeElement.className : "";
    list.replaceChildren(...turns.map((turn, number) => row(turn, number, most)));
    if (at) list.children[shown]?.querySelector(".turn").focus();
    const { prompt_tokens: all, reused } = turns[shown] ?? {};
    part.querySelector(".dialogue-columns").textContent = all === undefined ? "" : `turn ${shown + 1}: ${all} columns, ${reused} reused, ${all - reused} read`;
    part.querySelector(`[data-edit="${OVER}"]`).hidden = !edit;
    part.querySelector(`[data-edit="${KEEP}"]`).hidden = edited === null;
    note.textContent = edited === null ? "" : `Editing turn ${edited + 1}: change the question, then press Follow up. ${edited + 1 < turns.length ? "The turns behind it go." : ""}`;
  }

  function row({ question, answer, tau, reused, prompt_tokens: all, picture }, number, most) {
    const item = make("li", edited !== null && number >= edited ? "replaced" : "");
    const button = make("button", "turn", "", { type: "button", disabled: number !== shown && (running || !held.has(number)) });
    button.dataset.turn = number;
    if (number === shown) button.setAttribute("aria-current", "true");
    const asked = make("span", "turn-asked", `${number + 1} `);
    asked.append(make("b", "", question), make("span", "", answer === undefined ? " …" : ` ${answer}`));
    const bar = make("span", "turn-tau", tau == null ? "" : `τ ${tau.toFixed(1)}`, { title: "tokens per target pass" });
    bar.style.setProperty("--share", `${(100 * (tau ?? 0)) / most}%`);
    const columns = all === undefined ? "" : `${reused} of ${all} reused${picture && number ? ", new picture" : ""}`;
    button.append(asked, bar, make("span", "turn-columns", columns));
    item.append(button);
    if (edit && answer !== undefined) {
      const change = make("button", "quiet turn-edit", "Edit", { type: "button", disabled: running });
      change.dataset.edit = number;
      change.setAttribute("aria-label", `Edit turn ${number + 1}`);
      item.append(change);
    }
    return item;
  }

  // What is saved: the last turn's frames, with those of the others and the file of them all in its end.
  function whole() {
    const last = held.get(turns.length - 1);
    if (turns.length < 2 || !last) return frames();
    const others = Object.fromEntries([...held].filter(([turn]) => turn !== turns.length - 1));
    return [...last.slice(0, -1), JSON.stringify({ ...JSON.parse(last.at(-1)), held: others, file })];
  }

  return { begin, end, whole, show, turn: () => (turns.length < 2 ? null : shown + 1) };
}

function make(tag, className, text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { className, textContent: text, ...rest });
}
