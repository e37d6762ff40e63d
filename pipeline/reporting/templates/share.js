// The page: photos that are chosen, dropped or pasted get an answer, and stay on this device.
const bytes = Uint8Array.from(atob(document.getElementById("model").textContent), (letter) => letter.charCodeAt(0));
const settings = JSON.parse(document.getElementById("settings").textContent);
const { view, classes, limit, pad: PAD_COLOUR, check, steps } = settings;
const tensors = constants(settings.constants, bytes);
const results = document.getElementById("results"), drop = document.getElementById("drop");
let tested; // before the first photo
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

// The logits and the log-probabilities of an image.
function answer(pixels) {
  const logits = [...compute(steps, { ...tensors, pixels })], highest = Math.max(...logits);
  const total = logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
  return { logits, logs: logits.map((logit) => logit - highest - Math.log(total)) };
}

// Throws if fixed pixels get another answer here than where the page was written.
function test() {
  const pixels = { shape: [1, 3, view.crop, view.crop], data: new Float32Array(3 * view.crop ** 2) };
  pixels.data.forEach((_, k) => { pixels.data[k] = (k * 7919 % 1021) / 4; });
  const { logs } = answer(pixels), most = -Math.min(...check);
  if (check.every((log, k) => Math.abs(log - logs[k]) <= most / 1000)) return true;
  throw new Error("This browser gives other answers than perennial predict.");
}

// { pixels, logits, probabilities, isAccepted } of a file.
async function classify(file) {
  tested ??= test();
  const pixels = crop(square(await decode(file), view), view), { logits, logs } = answer(pixels);
  const probabilities = logs.map(Math.exp), isAccepted = Number(Math.max(...probabilities).toPrecision(6)) >= limit;
  return { pixels, logits, probabilities, isAccepted };
}

function part(name, words, parent) {
  const element = document.createElement(name);
  element.textContent = words;
  parent.append(element);
  return element;
}

function draw(canvas, { data, shape: [, , side] }) {
  const image = new ImageData(side, side), plane = side * side;
  canvas.width = canvas.height = side;
  for (let k = 0; k < plane; k++) image.data.set([data[k], data[plane + k], data[2 * plane + k], 255], 4 * k);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

async function show(file, before) {
  const shot = part("figure", "", results), canvas = part("canvas", "", shot), caption = part("figcaption", "", shot);
  shot.className = "shot";
  results.insertBefore(shot, before);
  part("span", "computing …", caption);
  await new Promise((resume) => setTimeout(resume, 30)); // the browser draws the line above
  try {
    const { pixels, probabilities, isAccepted } = await classify(file);
    draw(canvas, pixels);
    caption.replaceChildren();
    const order = probabilities.map((_, k) => k).sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 3);
    if (!isAccepted) part("span", "none of the classes; most likely:", caption);
    order.forEach((k, rank) => {
      const line = part("span", "", caption);
      part(rank === 0 && isAccepted ? "b" : "span", `${classes[k]} ${percent(probabilities[k])}`, line);
    });
  } catch (error) {
    canvas.remove();
    caption.replaceChildren();
    part("span", error instanceof DOMException ? "This browser cannot open the file as an image." : String(error), caption);
  }
  const name = part("span", "", caption);
  part("span", file.name, name).className = "file";
}

async function showAll(files) { // above the earlier photos, in their own order
  const before = results.firstChild;
  for (const file of files) await show(file, before);
}

document.querySelector("input").addEventListener("change", (event) => showAll([...event.target.files]));
document.addEventListener("paste", (event) => showAll([...event.clipboardData.files]));
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
  });
}
document.addEventListener("drop", (event) => showAll([...event.dataTransfer.files]));
