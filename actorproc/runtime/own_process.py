"""Makes a process that only runs hosts cheap in time and memory, by choices that hold for all of the process."""

from __future__ import annotations

import gc
import os

import pyarrow as pa

_POOL = "ARROW_DEFAULT_MEMORY_POOL"  # pyarrow's own variable, by which users choose


def set_up_process() -> None:
    """Exempt everything imported so far from garbage collection, and let Arrow take memory from jemalloc.

    A full collection visits 70,000 objects of modules and stops the process for some 40 ms. jemalloc, where pyarrow has
    it, keeps 40 to 50 MiB less than mimalloc does at the same speed (docs/performance.md, "Memory"). A library must not
    make either choice for the application that embeds it.
    """
    gc.collect()
    gc.freeze()
    if _POOL not in os.environ and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
