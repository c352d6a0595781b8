"""Spark with Delta, in an environment with the PySpark that Delta knows.

python -m tests.connectors.delta.spark_reader FOLDER read       the table's rows on stdout, as JSON
python -m tests.connectors.delta.spark_reader FOLDER optimize   rewrites its files
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as f

from examples.delta_table import SETTINGS
from tests.spark.conftest import new_session


def _main(folder: str, what: str) -> None:
    spark = new_session(settings=SETTINGS)
    if what == "optimize":
        spark.sql(f"OPTIMIZE delta.`{folder}`")
        spark.sql(f"VACUUM delta.`{folder}`")
        return
    table = spark.read.format("delta").load(folder)
    for (row,) in table.select(f.to_json(f.struct("partition", "_sequence", "n", "t", "tiny", "d"))).collect():
        print(row)
    print("filtered", table.where("n = 77").count(), table.where("partition = 'a b'").count())


if __name__ == "__main__":
    _main(*sys.argv[1:])
