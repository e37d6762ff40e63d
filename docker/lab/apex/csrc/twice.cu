// A kernel, so that the CUDA compiler has something to do. Nothing calls it: there is no GPU.
__global__ void twice(float* values, int count) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) values[index] *= 2;
}
