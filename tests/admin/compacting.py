"""Compacts the processor `numbers` in small files until it is killed: python -m tests.admin.compacting CONTAINER"""

from __future__ import annotations

import sys

import anyio

from actorproc.admin import compact


async def _main(container: str) -> None:
    print("ready", flush=True)
    while True:
        await compact(
            container=container, name="numbers", target_size=12_000, older_than=0,
            began=lambda found: print("began", len(found.groups), flush=True),
        )  # fmt: skip


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
