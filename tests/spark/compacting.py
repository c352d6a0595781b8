"""Compacts the processor `numbers` in small files until it is killed: python -m tests.spark.compacting CONTAINER"""

from __future__ import annotations

import sys

from actorproc.spark import compact
from tests.spark.conftest import new_session


def _main(container: str) -> None:
    spark = new_session()
    print("ready", flush=True)
    while True:
        compact(
            spark, container, "numbers", target_size=12_000, older_than=0,
            began=lambda found: print("began", len(found.groups), flush=True),
            done=lambda group: print("done", group.partition, group.first, flush=True),
        )  # fmt: skip


if __name__ == "__main__":
    _main(*sys.argv[1:])
