"""A restore of keyed state from S3: the objects that a new owner reads, their bytes, and the time that it takes.

The keys come in commits of 10,000. After each 16 commits objects are merged, as an owner does it. Then 15 commits
follow that change the same keys again, and are not merged yet: a new owner finds no more than that.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import anyio
from rich.console import Console
from rich.table import Table

from actorproc.config.settings import Settings
from actorproc.handler.keyed_state import AttemptState, StateChanges
from actorproc.output.checkpoint import StateObject
from actorproc.state.partition_state import PartitionState
from actorproc.storage.names import STATE
from actorproc.storage.store import Store
from actorproc.stores import open_store
from benchmarks.state import CHANGED, LAYOUT, commit, new_state
from tests.servers import S3Server, seaweedfs

_MERGED_EACH = 16


class _Restored(NamedTuple):
    objects: int
    gets: int
    size: int
    seconds: float
    cpu: float


def run(sizes: tuple[int, ...] = (100_000, 1_000_000)) -> None:
    """Print a row for each number of keys."""
    table = Table("keys", "objects", "GETs", "MiB", "s", "CPU, s", title="restore of keyed state from SeaweedFS")
    with tempfile.TemporaryDirectory() as folder, seaweedfs(Path(folder)) as server:
        for keys in sizes:
            found = anyio.run(_measured, server, keys)
            table.add_row(
                f"{keys:,}", str(found.objects), str(found.gets), f"{found.size / 2**20:.1f}", f"{found.seconds:.2f}",
                f"{found.cpu:.2f}",
            )  # fmt: skip
    Console().print(table)


async def _measured(server: S3Server, keys: int) -> _Restored:
    async with open_store(await server.new_url(), Settings.load(**server.settings)) as store:
        manifest = await _written(store, keys)
        gc.collect()
        state, gets, began, cpu = new_state(store), store.requests["get"], time.monotonic(), time.process_time()
        await state.load(manifest)
        state.restored(0)
        took = time.monotonic() - began, time.process_time() - cpu
        if len(state.held("")) != keys:
            raise AssertionError(f"{len(state.held(''))} keys were restored, of {keys}")
        return _Restored(len(manifest), store.requests["get"] - gets, await _size(store, state), *took)


async def _written(store: Store, keys: int) -> tuple[StateObject, ...]:
    """The manifest after all commits."""
    state, full = new_state(store), -(-keys // CHANGED)
    for number in range(full + 15 - full % _MERGED_EACH):
        first = number * CHANGED % keys
        await commit(store, state, number, _changes(state, range(first, min(first + CHANGED, keys))))
        if state.unmerged >= _MERGED_EACH:
            await state.merge(number + 1)
    return state.manifest


def _changes(state: PartitionState, numbers: range) -> StateChanges:
    """A random number for each key, which is an identifier of 16 characters: neither compresses well."""
    attempt, values = AttemptState(state.held), random.Random(numbers.start)
    view = attempt.view("")
    for number in numbers:
        view.set(f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}", values.getrandbits(40))
    return attempt.take()


async def _size(store: Store, state: PartitionState) -> int:
    """Bytes of the objects of the manifest."""
    names = {LAYOUT.attached(STATE, "0", found.label, found.put_id) for found in state.manifest}
    stored = await store.list(LAYOUT.attached_dir(STATE, "0"))
    return sum(entry.size for entry in stored.entries if entry.key in names)
