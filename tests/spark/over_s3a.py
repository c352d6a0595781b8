"""A driver in which Spark itself reaches S3, with the jars that docs/spark.md names. ACTORPROC_S3_* say where and who.

python -m tests.spark.over_s3a CONTAINER CHECKPOINTS FOLDER     both streams to the end, into FOLDER; all rows as JSON
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from actorproc.config.settings import Settings
from actorproc.spark import read_output, stream_output
from actorproc.spark.hadoop import places
from tests.spark.conftest import ROOT, new_session
from tests.spark.sink import Sink


def _session(checkpoints: str) -> SparkSession:
    snippet = (ROOT / "docs/spark.md").read_text().partition('"spark.jars.packages"')[2].partition("```")[0]
    jars = {
        "spark.jars.packages": ",".join(re.findall(r"[\w.]+:[\w.-]+:[\d.]+", snippet)),
        "spark.jars.excludes": re.findall(r'"spark.jars.excludes", "(.*?)"', snippet)[0],
    }
    # The checkpoint is Spark's own affair: it takes the session's credentials.
    [place] = places([checkpoints], Settings.load())
    access = {f"spark.hadoop.{name}": value for name, value in place.options.items()}
    return new_session(settings=jars | access)


def _main(container: str, checkpoints: str, folder: str) -> None:
    spark = _session(checkpoints)
    for native in (True, False):
        frame = stream_output(spark, container, "numbers", native=native)
        how = "native" if native else "source"
        Sink(Path(folder) / how).run(frame, f"{checkpoints}/{how}")
    frame = read_output(spark, container, "numbers")
    assert all(file.startswith("s3a://") for file in frame.inputFiles()), "Spark's own reader was to be used"
    json.dump([(row._partition, row._sequence, row.n) for row in frame.collect()], sys.stdout)


if __name__ == "__main__":
    _main(*sys.argv[1:])
