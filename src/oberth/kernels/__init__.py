"""Kernels over the bytes of a store: compiled from C where they could be built, else plain Python.

Each public function has its reference beside it (`reference_…`) and gives the same answer for any
bytes. Nothing here opens a file, a socket or a clock; a kernel sees the memory that it is given.

    columns, arguments   records as structure-of-arrays, topics by number, codes
    scan                 records into columns; the next record after damage
    queues               ConsumeQueue and BatchConsumeQueue units from columns
    index                Index entries from columns, Index files from entries
    batch                items of a client's batch, cleaned, and as records
    gather               values in the memory layout of Arrow
    check                units and index entries against what the log says
    hashing              CRC-32 and Java hashes
    runtime              where the compiled kernels come from
    native/              their C source; setup.py builds it and writes its layout.h
"""

from oberth.kernels.runtime import available, use_reference_only

__all__ = ["available", "use_reference_only"]
