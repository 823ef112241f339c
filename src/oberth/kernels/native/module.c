/* oberth.kernels._native: the kernels as functions of one array of int64. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "checks.h"
#include "kernels.h"

typedef int64_t (*Kernel)(int64_t *args);

/* Runs a kernel without the interpreter's lock; the caller keeps the memory that the arguments
   point to alive and in place. */
static PyObject *run(PyObject *arguments, Kernel kernel) {
    Py_buffer view;
    if (PyObject_GetBuffer(arguments, &view, PyBUF_WRITABLE) < 0) return NULL;
    int64_t result;
    Py_BEGIN_ALLOW_THREADS
    result = kernel((int64_t *)view.buf);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(result);
}

#define WRAP(name)                                                    \
    static PyObject *run_##name(PyObject *module, PyObject *arguments) { \
        (void)module;                                                 \
        return run(arguments, kernel_##name);                         \
    }
KERNELS(WRAP)
#undef WRAP

static PyObject *address(PyObject *module, PyObject *buffer) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *result = PyLong_FromVoidPtr(view.buf);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *uninitialised(PyObject *module, PyObject *number) {
    (void)module;
    Py_ssize_t size = PyLong_AsSsize_t(number);
    if (size == -1 && PyErr_Occurred()) return NULL;
    return PyByteArray_FromStringAndSize(NULL, size);
}

static PyObject *set_hash_seed(PyObject *module, PyObject *number) {
    (void)module;
    unsigned long long seed = PyLong_AsUnsignedLongLong(number);
    if (seed == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    hash_seed = seed;
    Py_RETURN_NONE;
}

#define METHOD(name) {#name, run_##name, METH_O, NULL},
static PyMethodDef methods[] = {
    KERNELS(METHOD)
    {"address", address, METH_O, "Where a buffer's bytes lie in memory."},
    {"uninitialised", uninitialised, METH_O, "A bytearray that holds anything."},
    {"set_hash_seed", set_hash_seed, METH_O, "Where the hash of names begins."},
    {NULL, NULL, 0, NULL},
};
#undef METHOD

static int prepare(PyObject *module) {
    crc_prepare();
    return PyModule_AddIntConstant(module, "layout", (long)LAYOUT);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)prepare},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "oberth.kernels._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
