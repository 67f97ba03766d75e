// Keeps the opening in front of the page until the player shows the same step, then hands over in one frame. The tree,
// which waits for its drawing library, stays as the server drew it until it is there.

(() => {
  const LONGEST = 30_000; // milliseconds after which a page that shows something else is let through
  const SAME = [".asked", ".step-name", ".sentence"];
  const host = document.getElementById("opening");
  const opening = host.shadowRoot;
  if (!opening) return host.remove(); // a browser that knows no declarative shadow roots

  const theme = new URLSearchParams(location.search).get("__theme");
  const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  opening.querySelector("main").classList.toggle("dark", dark);
  document.documentElement.classList.add("opening");

  // What the player needs is fetched while Gradio starts, but not before the first frame.
  const { content } = host.querySelector(".soon");
  requestAnimationFrame(() => setTimeout(() => document.head.append(content)));

  const still = opening.querySelector(".still");
  reveal();
  const told = (root) => SAME.map((selector) => root.querySelector(selector)?.textContent).join("\n");
  const wanted = told(opening);
  const drawn = () => document.querySelector(".tree .main-svg");
  const pictured = () => [...document.querySelectorAll("#picture img")].every(({ complete }) => complete);
  const watcher = new MutationObserver(look);
  watcher.observe(document, { childList: true, subtree: true });
  document.addEventListener("load", look, true); // pictures
  setTimeout(() => document.querySelector(".player") && handOver(), LONGEST);

  function look() {
    const same = told(document) === wanted;
    if (host.isConnected) {
      if (same && pictured()) handOver();
    } else if (!same || drawn()) {
      still.remove();
      stop();
    }
  }

  function handOver() {
    if (!host.isConnected) return;
    host.remove();
    document.documentElement.classList.remove("opening");
    if (!still || drawn() || told(document) !== wanted) return stop();
    const tree = document.querySelector(".tree");
    tree.style.cssText = opening.querySelector(".tree").style.cssText; // the player sets the same room
    still.setAttribute("aria-hidden", "true");
    tree.append(still);
    reveal();
  }

  // As the player does where the tree is wider than its card: the chosen node is in sight.
  function reveal() {
    const place = still?.querySelector(".chosen")?.getBoundingClientRect();
    const scroller = still?.closest(".scroller");
    const card = scroller?.getBoundingClientRect();
    if (place && (place.left < card.left || place.right > card.right)) {
      scroller.scrollLeft += place.left - card.left - card.width / 2;
    }
  }

  function stop() {
    watcher.disconnect();
    document.removeEventListener("load", look, true);
  }
})();
