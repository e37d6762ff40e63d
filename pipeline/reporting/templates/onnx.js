// Reads a model.onnx, and computes it for one image: the operators of convolutional networks. A sum is in float64, and
// its result is rounded to float32. A network of whole numbers so gets the bits of every other runtime.
// A tensor is { shape, data }; the data of whole numbers are in float64, too.

// Protocol buffers: the values of each field of a message, by its number. https://protobuf.dev/programming-guides/encoding
function fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = [];
  let at = 0;
  function varint() {
    let value = 0n, shift = 0n, byte;
    do {
      byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    return Number(BigInt.asIntN(64, value));
  }
  while (at < bytes.length) {
    const tag = varint(), number = tag >> 3;
    let value;
    if ((tag & 7) === 0) value = varint();
    else if ((tag & 7) === 5) value = view.getFloat32((at += 4) - 4, true);
    else {
      const length = varint();
      value = bytes.subarray(at, (at += length));
    }
    (found[number] ??= []).push(value);
  }
  return found;
}

const text = (bytes) => new TextDecoder().decode(bytes);

// The numbers are those of onnx.proto: TensorProto.DataType, and the fields of each message.
const KINDS = { 1: Float32Array, 3: Int8Array, 5: Int16Array, 6: Int32Array, 7: BigInt64Array, 11: Float64Array };

function tensor(bytes) {
  const { 1: shape = [], 2: [kind], 9: [raw] } = fields(bytes);
  const data = new KINDS[kind](raw.slice().buffer);
  return { shape, data: kind === 1 ? data : Float64Array.from(data, Number) };
}

function attribute(bytes) {
  const { 1: [name], 2: float, 3: whole, 4: string, 5: value, 8: several } = fields(bytes);
  const one = float ?? whole;
  return [text(name), one ? one[0] : string ? text(string[0]) : value ? tensor(value[0]) : several];
}

function read(bytes) {
  const { 7: [graph], 14: notes } = fields(bytes);
  const { 1: nodes, 5: initializers } = fields(graph);
  const tensors = initializers.map((each) => [text(fields(each)[8][0]), tensor(each)]);
  return {
    notes: Object.fromEntries(notes.map(fields).map(({ 1: [key], 2: [value] }) => [text(key), text(value ?? new Uint8Array())])),
    tensors: Object.fromEntries(tensors),
    nodes: nodes.map(fields).map(({ 1: inputs = [], 2: outputs, 4: [operator], 5: attributes = [] }) => ({
      inputs: inputs.map(text), outputs: outputs.map(text), operator: text(operator),
      attributes: Object.fromEntries(attributes.map(attribute)),
    })),
  };
}

const size = (shape) => shape.reduce((product, side) => product * side, 1);
const vector = (numbers) => ({ shape: [numbers.length], data: Float64Array.from(numbers) });
const empty = (x, shape) => ({ shape, data: new x.data.constructor(size(shape)) });
const MIDDLE = 1.5 * 2 ** 52;
const nearest = (x) => (x + MIDDLE) - MIDDLE; // a tie goes to the even number, as in IEEE 754

// An operator of each element. A browser makes one fast program of each text of a loop, so each frequent one has its own.
const each = (f) => (x) => ({ ...x, data: x.data.map(f) });

function round(x) {
  const result = empty(x, x.shape), { data } = x;
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

// An operator of two tensors of one shape; or the second one has fewer numbers, for neighbouring sides of the first.
const pair = (operator) => (x, y) => {
  const { shape } = x.shape.length >= y.shape.length ? x : y, result = empty(x, shape), loop = LOOPS[operator];
  const sides = Array(shape.length - y.shape.length).fill(1).concat(y.shape);
  const inner = size(shape.slice(sides.findLastIndex((side) => side > 1) + 1));
  for (let k = 0, block = 0; k < x.data.length; k += inner, block++) {
    loop(result.data, x.data, y.data[block % y.data.length], k, k + inner);
  }
  return result;
};

// The same, where the order does not matter: the larger tensor is the first.
const either = (operator) => (x, y) => pair(operator)(...(x.data.length < y.data.length ? [y, x] : [x, y]));

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

function conv(x, weight, bias, attributes) {
  const [filters, depth, ...kernel] = weight.shape, { group = 1 } = attributes;
  const plane = x.shape[2] * x.shape[3], { height, width, visit } = slide(x, kernel, attributes);
  const places = height * width, isPoint = kernel[0] === 1 && kernel[1] === 1 && places === plane;
  const result = empty(x, [1, filters, height, width]), sums = new Float64Array(places);
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
  const result = empty(x, [1, channels, height, width]);
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

function normalize(x, [scale, offset, mean, variance], { epsilon = 1e-5 }) {
  const result = empty(x, x.shape), plane = x.shape[2] * x.shape[3];
  for (let channel = 0, k = 0; channel < x.shape[1]; channel++) {
    const factor = scale.data[channel] / Math.sqrt(variance.data[channel] + epsilon);
    const centre = mean.data[channel], shift = offset.data[channel];
    for (const end = k + plane; k < end; k++) result.data[k] = (x.data[k] - centre) * factor + shift;
  }
  return result;
}

function pad(x, { data: sides }, value) {
  const [top, left, bottom, right] = [sides[2], sides[3], sides[6], sides[7]];
  const [, channels, height, width] = x.shape, shape = [1, channels, top + height + bottom, left + width + right];
  const result = empty(x, shape);
  result.data.fill(value ? value.data[0] : 0);
  for (let line = 0; line < channels * height; line++) {
    const channel = Math.floor(line / height), row = channel * shape[2] + top + line % height;
    result.data.set(x.data.subarray(line * width, (line + 1) * width), row * shape[3] + left);
  }
  return result;
}

// The sum or the mean of each channel; the axes are always the last two.
function reduce(x, { keepdims = 1 }, isMean) {
  const channels = x.shape[1], plane = x.shape[2] * x.shape[3];
  const result = empty(x, keepdims ? [1, channels, 1, 1] : [1, channels]);
  for (let channel = 0; channel < channels; channel++) {
    let sum = 0;
    for (let k = channel * plane; k < (channel + 1) * plane; k++) sum += x.data[k];
    result.data[channel] = isMean ? sum / plane : sum;
  }
  return result;
}

function linear(x, weight, bias, { transB = 0 }) {
  const [inputs] = x.shape.slice(-1), outputs = weight.data.length / inputs, result = empty(x, [1, outputs]);
  for (let output = 0; output < outputs; output++) {
    let sum = bias ? bias.data[output] : 0;
    for (let k = 0; k < inputs; k++) sum += x.data[k] * weight.data[transB ? output * inputs + k : k * outputs + output];
    result.data[output] = sum;
  }
  return result;
}

function reshape(x, { data: sides }) {
  const shape = [...sides].map((side, axis) => side || x.shape[axis]);
  return { ...x, shape: shape.map((side) => side < 0 ? x.data.length / -size(shape) : side) };
}

// The sides before `axis` are 1: an image is a batch of its own.
function concatenate(...inputs) {
  const { axis } = inputs.pop(), [{ shape }] = inputs, side = inputs.reduce((sum, x) => sum + x.shape[axis], 0);
  const result = empty(inputs[0], shape.with(axis, side));
  inputs.reduce((at, { data }) => (result.data.set(data, at), at + data.length), 0);
  return result;
}

const limited = (x, low, high) => each((v) => Math.min(Math.max(v, low), high))(x);
const bound = (x, otherwise) => x?.data ? x.data[0] : otherwise;
const OPERATORS = {
  Add: either("Add"), Mul: either("Mul"), Max: either("Max"), Min: either("Min"), Sub: pair("Sub"), Div: pair("Div"),
  Round: round, Relu: each((a) => a > 0 ? a : 0), Sigmoid: each((a) => 1 / (1 + Math.exp(-a))),
  HardSigmoid: (x, { alpha = 0.2, beta = 0.5 }) => each((a) => Math.min(Math.max(alpha * a + beta, 0), 1))(x),
  HardSwish: each((a) => a * Math.min(Math.max(a / 6 + 0.5, 0), 1)),
  Clip: (x, low, high) => limited(x, bound(low, -Infinity), bound(high, Infinity)),
  Conv: (x, weight, ...rest) => conv(x, weight, rest.length > 1 ? rest[0] : undefined, rest.at(-1)),
  Gemm: (x, weight, ...rest) => linear(x, weight, rest.length > 1 ? rest[0] : undefined, rest.at(-1)),
  BatchNormalization: (x, ...rest) => normalize(x, rest, rest.at(-1)), MaxPool: maxPool,
  Pad: (x, sides, value, attributes) => pad(x, sides, attributes && value),
  ReduceMean: (x, axes, attributes) => reduce(x, attributes ?? axes, true),
  ReduceSum: (x, axes, attributes) => reduce(x, attributes ?? axes, false),
  Cast: (x, { to }) => ({ ...x, data: to === 1 ? Float32Array.from(x.data) : Float64Array.from(x.data) }),
  Constant: ({ value, value_ints }) => value ?? vector(value_ints),
  Shape: (x, { start = 0, end }) => vector(x.shape.slice(start, end)), Squeeze: (x) => ({ ...x, shape: [] }),
  Concat: concatenate, Reshape: reshape,
  Flatten: (x) => ({ ...x, shape: [1, x.data.length] }), Identity: (x) => x,
};

// The outputs of the model for an image: its values are forgotten after the last operator that needs them.
function compute({ nodes, tensors }, inputs) {
  const values = { ...tensors, ...inputs }, last = {};
  nodes.forEach((node, index) => node.inputs.forEach((name) => last[name] = index));
  nodes.forEach(({ operator, inputs, outputs, attributes }, index) => {
    values[outputs[0]] = OPERATORS[operator](...inputs.map((name) => values[name]), attributes);
    for (const name of inputs) if (last[name] === index) delete values[name];
  });
  return values;
}
