// A photo as the model sees it, with the arithmetic of the project: a square as Pillow's bicubic resize makes it
// (dataset/squares.py), and the centre crop (loader/center.py). From the same pixels come the same bits.
const GRID = 256, UNITS = 256, BITS = 22; // of a pixel of the square, of a weight of the crop, of a weight of Pillow's

// The pixels of a file, 4 numbers each, as the browser decodes them: upright, without its colour profile, over white.
async function decode(file) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const image = await createImageBitmap(file, options), { width, height } = image;
  const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = "white";
  canvas.fillRect(0, 0, width, height);
  canvas.drawImage(image, 0, 0);
  return { width, height, step: 4, data: canvas.getImageData(0, 0, width, height).data };
}

function bicubic(x) {
  const side = Math.abs(x);
  if (side < 1) return (1.5 * side - 2.5) * side * side + 1;
  return side < 2 ? (((side - 5) * side + 8) * side - 4) * -0.5 : 0;
}

// Pillow's weights of one axis: for each of `out` pixels the first of `side` pixels, and whole numbers.
function filters(side, start, end, out) {
  const scale = (end - start) / out, wide = Math.max(scale, 1), support = 2 * wide;
  return Array.from({ length: out }, (_, place) => {
    const centre = start + (place + 0.5) * scale, first = Math.max(Math.trunc(centre - support + 0.5), 0);
    const count = Math.min(Math.trunc(centre + support + 0.5), side) - first;
    const weights = Array.from({ length: count }, (_, k) => bicubic((k + first - centre + 0.5) * (1 / wide)));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const whole = (weight) => Math.trunc(weight / total * 2 ** BITS + (weight / total < 0 ? -0.5 : 0.5));
    return { first, weights: weights.map(whole) };
  });
}

// One pass of the resize, along one axis.
function pass({ data, step, width, height }, axis, isVertical) {
  const columns = isVertical ? width : axis.length, lines = isVertical ? axis.length : height;
  const out = new Uint8ClampedArray(columns * lines * 3), along = isVertical ? width * step : step;
  for (let y = 0; y < lines; y++) {
    for (let x = 0; x < columns; x++) {
      const { first, weights } = axis[isVertical ? y : x];
      const from = (isVertical ? first * width + x : y * width + first) * step;
      for (let colour = 0; colour < 3; colour++) {
        let sum = 2 ** (BITS - 1);
        for (let k = 0; k < weights.length; k++) sum += weights[k] * data[from + k * along + colour];
        out[(y * columns + x) * 3 + colour] = Math.floor(sum / 2 ** BITS);
      }
    }
  }
  return { data: out, step: 3, width: columns, height: lines };
}

// Pillow 13 begins with the lines of an image if that removes many of them [found by trying; a test compares].
function resize(image, [left, top, right, bottom], width, height) {
  const across = filters(image.width, left, right, width), down = filters(image.height, top, bottom, height);
  if (image.height - height > Math.max(0, 2 * (image.width - width))) return pass(pass(image, down, true), across).data;
  return pass(pass(image, across), down, true).data;
}

// The square, 3 numbers a pixel, and the width and height that it stands for.
function square(image, { packed_size: side, fit }) {
  const { width, height } = image, whole = [0, 0, width, height];
  if (fit === "crop") {
    const short = Math.min(width, height), left = (width - short) / 2, top = (height - short) / 2;
    return { pixels: resize(image, [left, top, left + short, top + short], side, side), sizes: [1, 1] };
  }
  if (fit !== "pad") return { pixels: resize(image, whole, side, side), sizes: fit === "none" ? [width, height] : [1, 1] };
  const [across, down] = [width, height].map((each) => Math.max(1, nearest(side * each / Math.max(width, height))));
  const small = resize(image, whole, across, down), left = (side - across) >> 1, top = (side - down) >> 1;
  const pixels = new Uint8ClampedArray(side * side * 3).map((_, k) => PAD_COLOUR[k % 3]);
  for (let line = 0; line < down; line++) {
    pixels.set(small.subarray(line * across * 3, (line + 1) * across * 3), ((top + line) * side + left) * 3);
  }
  return { pixels, sizes: [1, 1] };
}

// center.triangle: for each of `out` pixels the first pixel, and weights in 1/UNITS.
function triangle(start, end, side, out) {
  const count = Math.min(side, Math.max(2, Math.ceil(2 * side / out))), pixel = 2 * out * GRID, extent = end - start;
  const radius = 2 * Math.max(extent, out * GRID);
  return Array.from({ length: out }, (_, place) => {
    const centre = 2 * out * start + (2 * place + 1) * extent;
    const first = Math.min(Math.max(Math.floor((centre - radius + pixel / 2) / pixel), 0), side - count);
    const height = (k) => Math.max(radius - Math.abs((first + k) * pixel + pixel / 2 - centre), 0);
    const running = [0];
    for (let k = 0; k < count; k++) running.push(running[k] + height(k));
    const rounded = running.map((sum) => Math.floor((2 * UNITS * sum + running[count]) / (2 * running[count])));
    return { first, weights: rounded.slice(1).map((sum, k) => (sum - rounded[k]) / UNITS) };
  });
}

// What the model sees: float32 [1, 3, crop, crop] of 0 to 255.
function crop({ pixels, sizes }, { packed_size: side, resize: short, crop: out }) {
  const [columns, lines] = sizes.map((each) => {
    const extent = Math.floor(side * GRID * out * Math.min(...sizes) / (short * each));
    const start = Math.max(Math.floor((side * GRID - extent) / 2), 0);
    return triangle(start, Math.min(Math.floor((side * GRID - extent) / 2) + extent, side * GRID), side, out);
  });
  const data = new Float32Array(3 * out * out), across = new Float64Array(side * out);
  for (let colour = 0; colour < 3; colour++) {
    for (let y = 0; y < side; y++) {
      columns.forEach(({ first, weights }, x) => {
        const sum = weights.reduce((sum, weight, k) => sum + weight * pixels[(y * side + first + k) * 3 + colour], 0);
        across[y * out + x] = nearest(sum * 4) / 4;
      });
    }
    lines.forEach(({ first, weights }, y) => {
      for (let x = 0; x < out; x++) {
        const sum = weights.reduce((sum, weight, k) => sum + weight * across[(first + k) * out + x], 0);
        data[(colour * out + y) * out + x] = sum;
      }
    });
  }
  return { shape: [1, 3, out, out], data };
}
