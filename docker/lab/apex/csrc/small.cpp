// A module that links against torch, without its headers, which take seconds to compile: it loads only where torch is.
#include <Python.h>

namespace at {
int get_num_threads();
}

static PyObject* threads(PyObject*, PyObject*) { return PyLong_FromLong(at::get_num_threads()); }
static PyMethodDef methods[] = {{"threads", threads, METH_NOARGS, nullptr}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "", nullptr, -1, methods};

#define NAMED(prefix, name) prefix##name
#define INIT(name) NAMED(PyInit_, name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
