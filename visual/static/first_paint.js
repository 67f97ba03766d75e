// Keeps the first paint in front of the page until the player shows the same step, then hands over in one frame. A
// recorded tree stays until the drawing library, which comes last, has drawn it.

(() => {
  const LONGEST = 30_000; // milliseconds after which a page that shows something else is let through
  const host = document.getElementById("first-paint");
  const paint = host.shadowRoot;
  if (!paint) return host.remove(); // a browser that knows no declarative shadow roots

  const theme = new URLSearchParams(location.search).get("__theme");
  const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  paint.querySelector("main").classList.toggle("dark", dark);
  for (const place of paint.querySelectorAll("#masthead, #columns")) place.dataset.view = document.documentElement.dataset.view;
  document.documentElement.classList.add("first-paint");

  // What the player needs is fetched while Gradio starts, but not before the first frame.
  const { content } = host.querySelector(".soon");
  requestAnimationFrame(() => setTimeout(() => document.head.append(content)));

  const still = paint.querySelector(".still");
  reveal();
  const same = [".asked", ".step-name", ".sentence"].filter((selector) => paint.querySelector(selector)?.textContent); // a skeleton has no sentence yet
  const told = (root) => same.map((selector) => root.querySelector(selector)?.textContent).join("\n");
  const wanted = told(paint);
  const drawn = () => document.querySelector(".tree .main-svg");
  const pictured = () => [...document.querySelectorAll("#picture img")].every(({ complete }) => complete);
  const watcher = new MutationObserver(look);
  watcher.observe(document, { childList: true, subtree: true });
  document.addEventListener("load", look, true); // pictures
  setTimeout(() => document.querySelector(".player") && handOver(), LONGEST);

  function look() {
    const shown = told(document) === wanted;
    if (host.isConnected) {
      if (shown && pictured()) handOver();
    } else if (!shown || drawn()) {
      still.remove();
      stop();
    }
  }

  function handOver() {
    if (!host.isConnected) return;
    host.remove();
    document.documentElement.classList.remove("first-paint");
    if (!still || drawn() || told(document) !== wanted) return stop();
    const tree = document.querySelector(".tree");
    tree.style.cssText = paint.querySelector(".tree").style.cssText; // the player sets the same room
    still.setAttribute("aria-hidden", "true");
    tree.append(still);
    reveal();
  }

  // As the player does where the tree is wider than its card: the chosen node is in sight.
  function reveal() {
    const place = still?.querySelector(".tracemarked .point")?.getBoundingClientRect();
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
