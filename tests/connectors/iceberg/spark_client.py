"""Spark with Iceberg, in an environment with the PySpark that Iceberg knows: runs statements on the catalog.

python -m tests.connectors.iceberg.spark_client SETTINGS      JSON of settings of Spark; a JSON of statements on stdin

For each statement a line with its rows, as JSON, or with what Spark says if it refuses.
"""

from __future__ import annotations

import json
import sys

from tests.spark.conftest import new_session


def _main(settings: str) -> None:
    spark = new_session(settings=json.loads(settings))
    for statement in json.load(sys.stdin):
        try:
            rows: list[object] = [json.loads(str(row)) for row in spark.sql(statement).toJSON().collect()]
        except Exception as error:  # noqa: BLE001  # whatever Spark raises
            rows = [str(error)]
        print("=", json.dumps(rows))


if __name__ == "__main__":
    _main(sys.argv[1])
