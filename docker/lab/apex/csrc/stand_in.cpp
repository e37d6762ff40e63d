// A module that links against torch: it loads only where torch is.
#include <ATen/Parallel.h>
#include <pybind11/pybind11.h>

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("threads", &at::get_num_threads); }
