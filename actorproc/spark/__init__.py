"""Committed output as Spark DataFrames. Needs the extra `spark`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import pyspark
except ImportError:
    raise ImportError("actorproc.spark needs PySpark 4.1, 4.2 or 4.3: pip install 'actorproc[spark]'") from None

if TYPE_CHECKING:
    from actorproc.spark.compaction import Compaction, compact
    from actorproc.spark.frames import read_output, stream_output

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 1):
    raise ImportError(
        f"actorproc.spark needs PySpark 4.1, 4.2 or 4.3, and this is {pyspark.__version__}: pip install 'actorproc[spark]'"
    )

__all__ = ["Compaction", "compact", "read_output", "stream_output"]

# Imported when first asked for: Spark's own processes import this package, too, and need none of them.
_HOME = {"Compaction": "compaction", "compact": "compaction", "read_output": "frames", "stream_output": "frames"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
