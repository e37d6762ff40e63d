// Under each image with a suspicious label: a choice. All choices are shown as lines of data/corrections.csv. Without
// this script every suggestion is there as a line.
(() => {
  const sheet = document.getElementById("sheet");
  if (sheet === null) return;
  const chosen = document.getElementById("chosen");
  const shots = [...sheet.querySelectorAll(".shot")];
  const classes = JSON.parse(sheet.dataset.classes);

  function select(label, options, changed) {
    const made = document.createElement("select");
    made.setAttribute("aria-label", label);
    for (const [value, shown] of options) made.append(new Option(shown, value));
    made.addEventListener("change", changed);
    return made;
  }

  function cell(value) {
    return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  }

  function list() {
    const lines = [];
    for (const shot of shots) {
      const label = shot.querySelector("select").value;
      if (label !== "") lines.push([shot.dataset.path, label, shot.dataset.reason].map(cell).join(","));
    }
    chosen.hidden = lines.length === 0;
    chosen.querySelector("pre").textContent = lines.join("\n");
  }

  for (const shot of shots) {
    const { path, given, suggested } = shot.dataset;
    const others = classes.filter((name) => name !== given && name !== suggested);
    const options = [["", "the label is right"], [suggested, suggested], ...others.map((name) => [name, name])];
    options.push(["exclude", "leave it out"]);
    shot.querySelector("figcaption").append(select(`Correction of ${path}`, options, list));
  }

  const counts = new Map();
  for (const { dataset } of shots) counts.set(dataset.given, (counts.get(dataset.given) ?? 0) + 1);
  const filter = select(
    "Class of the labels that are shown",
    [["", `all labels (${shots.length})`], ...[...counts].sort().map(([name, count]) => [name, `${name} (${count})`])],
    () => {
      for (const shot of shots) shot.hidden = filter.value !== "" && shot.dataset.given !== filter.value;
    },
  );
  sheet.prepend(filter);
})();
