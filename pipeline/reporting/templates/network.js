// Computes a network for one image, by the operators of answers/page_network.py. A sum is in float64, and its result is
// rounded to float32. A network of whole numbers so gets the bits of every other runtime.
// A tensor is { shape, data }: four sides, and float32, or float64 in a constant.

const KINDS = { float32: Float32Array, float64: Float64Array, int16: Int16Array };

// The constants by their names, from their bytes one after the other.
function constants(list, bytes) {
  let end = 0;
  return Object.fromEntries(list.map(({ name, kind, shape, size }) => {
    const data = new KINDS[kind](bytes.slice(end, (end += size)).buffer);
    return [name, { shape, data: kind === "int16" ? Float64Array.from(data) : data }];
  }));
}

const size = (shape) => shape.reduce((product, side) => product * side, 1);
const empty = (shape) => ({ shape, data: new Float32Array(size(shape)) });
const MIDDLE = 1.5 * 2 ** 52;
const nearest = (x) => (x + MIDDLE) - MIDDLE; // a tie goes to the even number, as in IEEE 754

// An operator of each element. A browser makes one fast program of each text of a loop, so each frequent one has its own.
const each = (f) => ({ shape, data }) => ({ shape, data: data.map(f) });

function round({ shape, data }) {
  const result = empty(shape);
  for (let k = 0; k < data.length; k++) result.data[k] = nearest(data[k]);
  return result;
}

const LOOPS = { // z = x ∘ b, for a number b
  Add: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] + b; },
  Sub: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] - b; },
  Mul: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] * b; },
  Div: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] / b; },
  Max: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] > b ? x[k] : b; },
  Min: (z, x, b, k, end) => { for (; k < end; k++) z[k] = x[k] < b ? x[k] : b; },
};

// An operator of two tensors of one shape; or one of them has fewer numbers, for neighbouring sides of the other.
const pair = (operator) => (a, b) => {
  const [x, y] = a.data.length < b.data.length ? [b, a] : [a, b], result = empty(x.shape);
  const inner = size(x.shape.slice(y.shape.findLastIndex((side) => side > 1) + 1));
  for (let k = 0, block = 0; k < x.data.length; k += inner, block++) {
    LOOPS[operator](result.data, x.data, y.data[block % y.data.length], k, k + inner);
  }
  return result;
};

// The places of a filter along one axis: for each of its taps, the first and last output, and the input of output 0.
function taps(side, out, kernel, { stride, dilation, before }) {
  return Array.from({ length: kernel }, (_, tap) => {
    const start = tap * dilation - before;
    return { start, first: Math.max(0, Math.ceil(-start / stride)), end: Math.min(out, Math.ceil((side - start) / stride)) };
  });
}

// Filters that move over images: `step(sums, values, ...)` takes one tap of one filter to all its outputs.
function slide(x, kernel, { strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0] }) {
  const axes = [0, 1].map((axis) => {
    const side = x.shape[2 + axis], stride = strides[axis], dilation = dilations[axis], before = pads[axis];
    const out = Math.floor((side + before + pads[axis + 2] - dilation * (kernel[axis] - 1) - 1) / stride) + 1;
    return { out, stride, taps: taps(side, out, kernel[axis], { stride, dilation, before }) };
  });
  const [rows, columns] = axes, width = x.shape[3];
  function visit(combine) { // combine(tap, output, input, count, step): `count` outputs of a row from `output` on
    rows.taps.forEach((row, i) => columns.taps.forEach((column, j) => {
      for (let y = row.first; y < row.end; y++) {
        const input = (y * rows.stride + row.start) * width + column.first * columns.stride + column.start;
        combine(i * kernel[1] + j, y * columns.out + column.first, input, column.end - column.first, columns.stride);
      }
    }));
  }
  return { height: rows.out, width: columns.out, visit };
}

function conv(x, weight, ...rest) {
  const bias = rest.length > 1 ? rest[0] : undefined, attributes = rest.at(-1);
  const [filters, depth, ...kernel] = weight.shape, { group = 1 } = attributes;
  const plane = x.shape[2] * x.shape[3], { height, width, visit } = slide(x, kernel, attributes);
  const places = height * width, isPoint = kernel[0] === 1 && kernel[1] === 1 && places === plane;
  const result = empty([1, filters, height, width]), sums = new Float64Array(places);
  for (let filter = 0; filter < filters; filter++) {
    sums.fill(bias ? bias.data[filter] : 0);
    const first = Math.floor(filter * group / filters) * depth;
    const planeOf = (channel) => x.data.subarray((first + channel) * plane, (first + channel + 1) * plane);
    let channel = 0;
    for (; isPoint && channel + 4 <= depth; channel += 4) { // four at once are faster
      const [a, b, c, d] = [0, 1, 2, 3].map((k) => planeOf(channel + k)), from = filter * depth + channel;
      const [e, f, g, h] = weight.data.subarray(from, from + 4);
      for (let k = 0; k < places; k++) sums[k] += e * a[k] + f * b[k] + g * c[k] + h * d[k];
    }
    for (; channel < depth; channel++) {
      const values = planeOf(channel), factors = (filter * depth + channel) * kernel[0] * kernel[1];
      visit((tap, output, input, count, step) => {
        const factor = weight.data[factors + tap];
        for (let k = 0; k < count; k++) sums[output + k] += factor * values[input + k * step];
      });
    }
    result.data.set(sums, filter * places);
  }
  return result;
}

function maxPool(x, attributes) {
  const channels = x.shape[1], plane = x.shape[2] * x.shape[3];
  const { height, width, visit } = slide(x, attributes.kernel_shape, attributes), places = height * width;
  const result = empty([1, channels, height, width]);
  result.data.fill(-Infinity);
  for (let channel = 0; channel < channels; channel++) {
    const from = channel * plane, to = channel * places;
    visit((tap, output, input, count, step) => {
      for (let k = 0; k < count; k++) {
        const value = x.data[from + input + k * step];
        if (value > result.data[to + output + k]) result.data[to + output + k] = value;
      }
    });
  }
  return result;
}

// The sum or the mean of each channel.
const reduce = (isMean) => ({ shape: [, channels, height, width], data }) => {
  const result = empty([1, channels, 1, 1]), plane = height * width;
  for (let channel = 0; channel < channels; channel++) {
    let sum = 0;
    for (let k = channel * plane; k < (channel + 1) * plane; k++) sum += data[k];
    result.data[channel] = isMean ? sum / plane : sum;
  }
  return result;
};

function concatenate(...inputs) {
  const channels = inputs.reduce((sum, { shape }) => sum + shape[1], 0), result = empty(inputs[0].shape.with(1, channels));
  inputs.reduce((at, { data }) => (result.data.set(data, at), at + data.length), 0);
  return result;
}

const limited = (x, low, high) => each((v) => Math.min(Math.max(v, low), high))(x);
const bound = (x, otherwise) => x?.data ? x.data[0] : otherwise;
const OPERATORS = {
  Add: pair("Add"), Sub: pair("Sub"), Mul: pair("Mul"), Div: pair("Div"), Max: pair("Max"), Min: pair("Min"),
  Round: round, Relu: each((a) => a > 0 ? a : 0), Sigmoid: each((a) => 1 / (1 + Math.exp(-a))),
  HardSigmoid: (x, { alpha = 0.2, beta = 0.5 }) => each((a) => Math.min(Math.max(alpha * a + beta, 0), 1))(x),
  HardSwish: each((a) => a * Math.min(Math.max(a / 6 + 0.5, 0), 1)),
  Clip: (x, low, high) => limited(x, bound(low, -Infinity), bound(high, Infinity)),
  Conv: conv, MaxPool: maxPool, ReduceMean: reduce(true), ReduceSum: reduce(false),
  Concat: (...inputs) => concatenate(...inputs.slice(0, -1)),
};

// The result of the last step: a value is forgotten after the last step that needs it.
function compute(steps, values) {
  const last = {};
  steps.forEach((step, index) => step.inputs.forEach((name) => last[name] = index));
  steps.forEach((step, index) => {
    values[step.output] = OPERATORS[step.operator](...step.inputs.map((name) => values[name]), step);
    for (const name of step.inputs) if (last[name] === index) delete values[name];
  });
  return values[steps.at(-1).output].data;
}
