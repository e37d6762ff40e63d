// Under each image with a suspicious label: a choice. All choices are shown as lines of data/corrections.csv. Without
// this script every suggestion is there as a line.
(() => {
  const sheet = document.getElementById("sheet");
  if (sheet === null) return;
  const chosen = document.getElementById("chosen");
  const shots = [...sheet.querySelectorAll(".shot")];
  const classes = JSON.parse(sheet.dataset.classes);

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
    const select = document.createElement("select");
    select.setAttribute("aria-label", `Correction of ${path}`);
    for (const [value, shown] of options) select.append(new Option(shown, value));
    select.addEventListener("change", list);
    shot.querySelector("figcaption").append(select);
  }
})();
