// What a visitor can take along: the run as JSON or as a page of its own, a link to the step.
// Everything is made in the browser from what it already holds; only the empty page comes from the server.

const KEPT = 60_000; // milliseconds for a download to begin

// frames() is of the run on show; page() gives a blank page in two halves, and is missing on a saved one;
// `tables` is the module of that name.
export function createFiles(root, { frames, whole, address, page, tables }) {
  const menu = root.querySelector(".files");
  const note = menu.querySelector(".menu-note");
  const button = (name) => menu.querySelector(`[data-file="${name}"]`);
  const drawn = () => Promise.all(frames().map((text) => JSON.parse(text)).filter(({ picture, kind }) => picture && kind === "step").map(async (frame) => ({ ...frame, ...JSON.parse(await unpacked(frame.picture)) })));

  const actions = {
    race: async () => save(await unpacked(JSON.parse(whole().at(-1)).file), "application/json", "specllava-race.json"),
    page: async () => {
      note.textContent = "Packing the page …";
      const [before, behind] = await page();
      save(before + framesText(whole()) + behind, "text/html", "specllava-race.html");
    },
    nodes: async () => {
      const steps = await drawn();
      const race = JSON.parse(whole().at(-1)).file;
      save(tables.csvOf(tables.nodesTable(steps, race ? tables.traceOf(JSON.parse(await unpacked(race)), steps) : null)), "text/csv", "specllava-nodes.csv");
    },
    link: async () => {
      const link = address.share();
      const copied = await navigator.clipboard?.writeText(link).then(() => true, () => false); // lent to secure pages only
      if (!copied) window.prompt("A link to this step", link);
      return copied ? "The link is on the clipboard." : "";
    },
  };

  menu.addEventListener("toggle", offer);
  menu.addEventListener("keydown", (event) => {
    event.stopPropagation(); // arrow keys are the player's elsewhere
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("click", (event) => menu.contains(event.target) || (menu.open = false));
  menu.addEventListener("click", async (event) => {
    const name = event.target.closest("[data-file]")?.dataset.file;
    if (!name) return;
    try {
      note.textContent = (await actions[name]()) ?? "Saved.";
    } catch (error) {
      note.textContent = "This could not be saved. Please try again.";
      console.warn(error);
    }
  });

  return { offer };

  // A run can be saved once it is over; only what is recorded has an address.
  function offer() {
    if (!menu.open) return;
    const list = frames();
    const over = list.length > 0 && JSON.parse(list.at(-1)).kind === "end";
    for (const name of ["race", "page", "nodes"]) button(name).disabled = !over;
    button("page").hidden = !page;
    button("link").hidden = !address.can();
    button("link").disabled = !over;
    note.textContent = over ? "" : "The run can be saved when it is over.";
  }
}

// Long texts come packed: gzip, base64.
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// The frames as they are inside the page's script element: with no "<", no text can end it.
function framesText(list) {
  const [end, ...before] = saved(list).reverse();
  const last = JSON.parse(end);
  for (const [turn, one] of Object.entries(last.held ?? {})) last.held[turn] = saved(one);
  return JSON.stringify([...before.reverse(), JSON.stringify(last)]).replaceAll("<", "\\u003c");
}

function saved([first, ...rest]) {
  return [JSON.stringify({ ...JSON.parse(first), live: false, source: "saved run", example: null }), ...rest];
}

function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT); // some browsers start to read it only later
}
