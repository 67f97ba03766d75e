// A KV cache as a strip of columns: blocks of what it holds, then the columns of one pass, one by one. Dropped columns give
// up their room, so that the kept ones move together as they do in the cache.

const LABELLED = 48; // columns up to here have their token in them

// `lay` sets the columns: `blocks` as { kind, count, text } (kinds: picture, reused, read, said), `words` a text per new column.
// `mark` says what becomes of each new column: "absent", "waiting" for its pass, "read", "kept" or "dropped".
export function createCache(slot, title) {
  const [name, strip, note] = [styled("h3", title, "cache-name"), styled("ol", "", "cache-strip"), styled("p", "", "cache-note")];
  strip.setAttribute("aria-label", title);
  slot.replaceChildren(name, strip, note);
  let columns = [];

  function lay(blocks, words) {
    columns = words.map((word) => styled("li", words.length > LABELLED ? "" : word, "cache-column"));
    columns.forEach((column, place) => (column.title = words[place]));
    strip.replaceChildren(...blocks.filter(({ count }) => count).map(block), ...columns);
  }

  function mark(stateOf, said) {
    columns.forEach((column, place) => (column.dataset.state = stateOf(place)));
    note.textContent = said;
  }

  return { lay, mark };
}

function block({ kind, count, text }) {
  const item = styled("li", "", "cache-block");
  item.dataset.kind = kind;
  item.append(styled("b", String(count)), styled("span", text));
  return item;
}

function styled(tag, text, className = "") {
  return Object.assign(document.createElement(tag), { textContent: text, className });
}
