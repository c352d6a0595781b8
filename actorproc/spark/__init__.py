"""Committed output as Spark DataFrames. Needs the extra `spark`."""

from __future__ import annotations

from actorproc.runtime.requirements import how_to_install

try:
    import pyspark
except ImportError:
    raise ImportError(f"actorproc.spark needs PySpark 4.1, 4.2 or 4.3: {how_to_install('spark')}") from None

from actorproc.spark.dataframes import read_output, stream_output
from actorproc.spark.keyed_state import read_state

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 1):
    raise ImportError(
        f"actorproc.spark needs PySpark 4.1, 4.2 or 4.3, and this is {pyspark.__version__}: {how_to_install('spark')}"
    )

__all__ = ["read_output", "read_state", "stream_output"]
