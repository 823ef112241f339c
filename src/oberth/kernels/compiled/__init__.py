"""The kernels in the form that numba compiles.

Only `oberth.kernels.runtime` imports these modules, and only when machine code has to be made anew:
what they compile to is kept on disk and loaded without numba. So everything here is free to import
numba at the top. A kernel takes one pointer to int64 arguments (numbers and addresses, see
`oberth.kernels.arguments`) and returns an int64; it never allocates, raises or touches a Python
object, which is what lets it run without the GIL and without numba's run time.

Every read and write is bounded by the lengths in the arguments: the bytes are whatever a disk or a
peer made of them, and a pointer has no bounds check.
"""
