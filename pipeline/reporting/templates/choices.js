// Under each image whose label may be wrong: a choice. A bar that stays in view gives all choices as lines of
// data/corrections.csv. The browser keeps them for a page with these images and labels, so a reload loses none.
(() => {
  const bar = document.getElementById("chosen");
  const shots = [...document.querySelectorAll(".shot[data-path]")];
  if (shots.length === 0) return;
  const classes = JSON.parse(bar.dataset.classes);
  const key = ["perennial", ...shots.map(({ dataset }) => `${dataset.path}\t${dataset.given}`)].join("\n");
  const [count, saved, lines, note] = ["output", "a", "pre", ".note span"].map((name) => bar.querySelector(name));
  const [copy, clear] = bar.querySelectorAll("button");

  function cell(value) {
    return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  }

  function store(chosen) {
    try {
      if (chosen.length === 0) localStorage.removeItem(key);
      else localStorage.setItem(key, JSON.stringify(chosen));
      return "This browser keeps your choices.";
    } catch {
      return "This browser keeps nothing: save before you leave this page.";
    }
  }

  function list() {
    const chosen = shots.map((shot) => [shot.dataset.path, shot.querySelector("select").value, shot.dataset.reason]);
    const rows = chosen.filter(([, label]) => label !== "");
    bar.hidden = rows.length === 0;
    count.textContent = `${rows.length} ${rows.length === 1 ? "correction" : "corrections"}`;
    lines.textContent = rows.map((row) => row.map(cell).join(",")).join("\n");
    lines.hidden = true;
    saved.href = `data:text/csv;charset=utf-8,${encodeURIComponent(`path,label,reason\n${lines.textContent}\n`)}`;
    copy.textContent = "copy";
    note.textContent = store(rows.map(([path, label]) => [path, label]));
  }

  let before = new Map();
  try {
    before = new Map(JSON.parse(localStorage.getItem(key)));
  } catch {} // the bar says so
  for (const shot of shots) {
    const { path, given, suggested } = shot.dataset;
    const others = classes.filter((name) => name !== given && name !== suggested);
    const options = [["", "the label is right"], [suggested, suggested], ...others.map((name) => [name, name])];
    options.push(["exclude", "leave it out"]);
    const select = document.createElement("select");
    select.setAttribute("aria-label", `Correction of ${path}`);
    for (const [value, shown] of options) select.append(new Option(shown, value, false, value === before.get(path)));
    select.addEventListener("change", list);
    shot.querySelector("figcaption").append(select);
  }
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(`${lines.textContent}\n`);
      copy.textContent = "copied";
    } catch {
      lines.hidden = false;
      getSelection().selectAllChildren(lines);
      copy.textContent = "selected: press Ctrl+C";
    }
  });
  clear.addEventListener("click", () => {
    for (const shot of shots) shot.querySelector("select").value = "";
    list();
  });
  list();
})();
