// A click on a number of the confusion matrix shows the images of this cell only. Without this script the number is a
// jump to the first of them.
(() => {
  const cells = document.querySelectorAll("a.cell");
  const shots = document.querySelectorAll("#images .shot");
  const groups = document.querySelectorAll("#images .group");
  const note = document.getElementById("filter");

  function show(chosen) {
    let shown = 0;
    for (const shot of shots) {
      shot.hidden = chosen !== null && shot.dataset.pair !== chosen.dataset.pair;
      shown += shot.hidden ? 0 : 1;
    }
    for (const group of groups) {
      group.hidden = chosen !== null && group.querySelector(".shot:not([hidden])") === null;
      for (const part of group.querySelectorAll(".number, summary")) part.hidden = chosen !== null;
      for (const folded of group.querySelectorAll("details")) folded.open = chosen !== null;
    }
    for (const cell of cells) {
      if (cell === chosen) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    }
    note.hidden = chosen === null;
    if (chosen !== null) {
      const label = chosen.getAttribute("aria-label");
      note.querySelector("span").textContent = `${label}: ${shown} on this page.`;
    }
  }

  for (const cell of cells) {
    cell.addEventListener("click", (event) => {
      event.preventDefault();
      show(cell);
      document.getElementById("images").scrollIntoView();
      note.focus({ preventScroll: true });
    });
  }
  note.querySelector("button").addEventListener("click", () => show(null));
  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
