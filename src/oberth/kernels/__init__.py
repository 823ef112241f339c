"""Kernels over the bytes of a store: compiled by numba where it is there, plain Python otherwise.

Each public function has its reference beside it (`reference_…`) and gives the same answer for any
bytes. Importing this package imports neither numba nor numpy; machine code is loaded (0.05 s, once
it was compiled on this machine) when the first function has enough to do, see `runtime`.

    columns, arguments   records as structure-of-arrays, topics by number, codes
    scan                 records into columns; the next record after damage
    queues               ConsumeQueue and BatchConsumeQueue units from columns
    index                Index entries from columns, Index files from entries
    gather               values in the memory layout of Arrow
    check                units and index entries against what the log says
    hashing              CRC-32 and Java hashes
    runtime              where machine code comes from and lies
"""

from oberth.kernels.runtime import available, prepare, use_cache_directory, use_reference_only

__all__ = ["available", "prepare", "use_cache_directory", "use_reference_only"]
