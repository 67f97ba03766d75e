// Dims a race that is about another picture or question than the page's, and says so.

export function create(root, { live }) {
  if (!live) return {};
  const line = Object.assign(document.createElement("p"), { className: "about", hidden: true });
  line.setAttribute("role", "status");
  root.querySelector(".race > .bar").prepend(line);
  const about = { picture: "", question: "" };
  document.addEventListener("pictured", () => look());
  document.addEventListener("asked", ({ detail }) => look(detail));

  function look(question = document.querySelector("#question textarea")?.value) {
    const asked = (question ?? "").trim().replace(/[\u202A-\u202E\u2066-\u2069]/g, "\uFFFD"); // as in a run; empty: none yet
    const others = [
      (document.querySelector("#picture img")?.src ?? "") !== about.picture && "picture",
      asked !== "" && asked !== about.question && "question",
    ].filter(Boolean);
    root.classList.toggle("about-another", others.length > 0);
    line.hidden = !others.length;
    line.textContent = others.length ? `This race is about another ${others.join(" and another ")}.` : "";
  }

  return {
    begin(run) {
      Object.assign(about, { picture: run.picture ?? "", question: run.prompt.trim() });
      look();
    },
  };
}
