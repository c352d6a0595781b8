"""A committer of the Iceberg table as a process, which kills itself around its commits.

python -m tests.connectors.iceberg.committing WORLD SEED      a JSON of container, uri and options
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from random import Random
from typing import Any

from pyiceberg.catalog import Catalog

from actorproc.runtime.logger import get_logger
from actorproc.sinks.tables.committer import TableCommitter
from tests.connectors.iceberg.catalogs import World, opened


class Reckless:
    """A catalog that loses requests and replies, or kills the process before or after a commit."""

    def __init__(self, catalog: Catalog, random: Random) -> None:
        self._catalog, self._random = catalog, random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *given: Any) -> Any:
        fate = self._random.random()
        time.sleep(self._random.choice([0, 0, 0.3, 1]))  # others are first
        if fate < 0.1:
            _die()
        if fate < 0.2:
            raise OSError("the request was lost")
        done = self._catalog.commit_table(*given)
        print("landed", flush=True)
        if fate < 0.3:
            raise OSError("the reply was lost")
        if fate < 0.4:
            _die()
        return done


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _main(given: dict[str, Any], seed: int) -> None:
    random = Random(seed)
    sink, home = await opened(World(**given))
    sink._catalog = Reckless(sink._catalog, random)  # type: ignore[assignment, arg-type]
    committer = TableCommitter("lake", sink, home, schema=None, host=str(seed), log=get_logger("tests"))
    committer._is_open = True
    while True:
        await committer.turn(ask_all=True)
        await asyncio.sleep(random.uniform(0, 0.1))


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1]), int(sys.argv[2])))
