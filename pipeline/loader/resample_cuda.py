"""Resampling on a GPU, as the CUDA source of two kernels. `resample.by_kernels` starts them.

Everything is computed in whole numbers; only the normalization is not: a difference and a product, each rounded once.
So the bits are those of the loop for the CPU. The source is also valid C++, apart from the names of the threads. A test
compiles it with a compiler for the CPU and compares the bits.
"""

SOURCE = """
typedef long long wide;

// The filters of n boxes [n, 4] for both axes (0: columns, 1: lines), as `triangle` defines them: the first of `count`
// input pixels [n, 2, size], and their weights in 1/256 [n, 2, count, size]. A thread computes one output pixel's.
extern "C" __global__ void weigh(const wide* __restrict__ boxes, const bool* __restrict__ flips,
                                 int* __restrict__ first, int* __restrict__ weights,
                                 int n, int side, int size, int count) {
    const wide thread = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= 2LL * n * size) return;
    const int pixel = thread % size, axis = thread / size % 2;
    const wide box = thread / size / 2;
    const int place = axis == 0 && flips[box] ? size - 1 - pixel : pixel;

    // Positions are in units of 1 / (512 * size) input pixel.
    const wide unit = 512LL * size;
    const wide start = boxes[4 * box + axis], extent = boxes[4 * box + 2 + axis] - start;
    const wide centre = 2LL * size * start + (2LL * place + 1) * extent;
    const wide radius = 2 * (extent > 256LL * size ? extent : 256LL * size);
    const wide edge = centre - radius + unit / 2;
    wide begin = edge > 0 ? edge / unit : 0;
    if (begin > side - count) begin = side - count;
    first[thread] = (int)begin;

    const wide nearest = begin * unit + unit / 2 - centre;  // from the centre to the first input pixel
    wide total = 0;
    for (int k = 0; k < count; k++) {
        const wide away = nearest + k * unit;
        const wide height = radius - (away < 0 ? -away : away);
        if (height > 0) total += height;
    }
    // Running sums are rounded, not weights: then the weights sum to exactly 256.
    wide running = 0;
    int before = 0;
    for (int k = 0; k < count; k++) {
        const wide away = nearest + k * unit;
        const wide height = radius - (away < 0 ? -away : away);
        if (height > 0) running += height;
        const int rounded = (int)((512 * running + total) / (2 * total));
        weights[((2 * box + axis) * count + k) * size + pixel] = rounded - before;
        before = rounded;
    }
}

// sum / 64, rounded to a whole number, a half to the even one: 1/256 become 1/4.
static __device__ int to_quarters(int sum) { return (sum + 31 + (sum >> 6 & 1)) >> 6; }

// The boxes of images [N, side, side, 3] resampled with these filters and normalized, (pixel - mean) * scale, into
// `made`. Two strides say where a channel and an output pixel lie. A thread computes one output pixel.
extern "C" __global__ void cut(const unsigned char* __restrict__ images, const wide* __restrict__ rows,
                               const int* __restrict__ first, const int* __restrict__ weights,
                               const float* __restrict__ mean, const float* __restrict__ scale,
                               float* __restrict__ made,
                               int side, int size, int count, int channel_stride, int pixel_stride) {
    const int blocks = (size * size + blockDim.x - 1) / blockDim.x;  // per box
    const wide box = blockIdx.x / blocks;
    const int pixel = blockIdx.x % blocks * blockDim.x + threadIdx.x;
    if (pixel >= size * size) return;
    const int x = pixel % size, y = pixel / size;
    const int *column = first + 2 * box * size, *line = column + size;
    const int *column_weights = weights + 2 * box * count * size, *line_weights = column_weights + (wide)count * size;
    const unsigned char* corner = images + ((rows[box] * side + line[y]) * side + column[x]) * 3;

    int red = 0, green = 0, blue = 0;
    for (int j = 0; j < count; j++) {
        const int line_weight = line_weights[j * size + y];
        if (line_weight == 0) continue;
        const unsigned char* input = corner + (wide)j * side * 3;
        int r = 0, g = 0, b = 0;
        for (int k = 0; k < count; k++) {
            const int weight = column_weights[k * size + x];
            r += weight * input[3 * k];
            g += weight * input[3 * k + 1];
            b += weight * input[3 * k + 2];
        }
        red += line_weight * to_quarters(r);
        green += line_weight * to_quarters(g);
        blue += line_weight * to_quarters(b);
    }
    float* to = made + box * 3 * size * size + (wide)pixel * pixel_stride;
    const float unit = 1.0f / 1024;
    to[0] = (red * unit - mean[0]) * scale[0];
    to[channel_stride] = (green * unit - mean[1]) * scale[1];
    to[2 * channel_stride] = (blue * unit - mean[2]) * scale[2];
}
"""
