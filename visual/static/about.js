// Dims a race that is about another picture than the one on the page, and says so: a verdict stands beside no other.

const SAID = "This race is about another picture.";

export function create(root, { live }) {
  if (!live) return {};
  const line = Object.assign(document.createElement("p"), { className: "about", hidden: true });
  line.setAttribute("role", "status");
  root.querySelector(".verdict").prepend(line);
  let about = "";
  document.addEventListener("pictured", look);

  function look() {
    const other = (document.querySelector("#picture img")?.src ?? "") !== about;
    root.classList.toggle("about-another", other);
    line.hidden = !other;
    line.textContent = other ? SAID : "";
  }

  return {
    begin(run) {
      about = run.picture ?? "";
      look();
    },
  };
}
