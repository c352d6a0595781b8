"""`compact`: rewrites small committed files into larger ones, and switches readers to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack

from actorproc.admin.audit import record_now
from actorproc.config.settings import Settings
from actorproc.config.units import count_of_bytes, duration
from actorproc.errors import CorruptObject, UsageError
from actorproc.output.compact_output import AT_ONCE, TARGET_SIZE, Compaction, compact_output
from actorproc.output.compaction import FileGroup, plan
from actorproc.output.row_reader import partitions_with_state
from actorproc.output.schema_document import read_schema
from actorproc.retention.boundary import RETENTION
from actorproc.rows.output_schema import output_schema
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.tables.open_tables import open_tables
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores import given_store


async def compact(
    *,
    container: str | os.PathLike[str] | Store,
    name: str,
    target_size: int | str = TARGET_SIZE,
    older_than: float | str = RETENTION,
    keep: float | str = RETENTION,
    at_once: int = AT_ONCE,
    dry_run: bool = False,
    settings: Settings | None = None,
    began: Callable[[Compaction], None] = lambda _: None,
    done: Callable[[FileGroup], None] = lambda _: None,
) -> Compaction:
    """Rewrite the small files of processor `name` into files of about `target_size` bytes.

    The readers of actorproc see each row exactly once at every moment. The originals stay until `actorproc trim`
    deletes them. A killed compaction can be run again, and two at once do no harm.

    Args:
        container: URL, or an opened store.
        target_size: in bytes, or text such as "256MiB".
        older_than: compact only commits that are this old, in seconds or text such as "6h".
        keep: replaced compacted files stay this long, for queries that were planned before; at least an hour.
        at_once: partitions that are compacted at a time. Each holds a new file in memory, and some 150 MiB more.
        dry_run: only plan.
        settings: how to reach the store; default: environment and `actorproc.toml`.
        began: called with the plan.
        done: called with each group after readers were switched to its file.

    Raises:
        UsageError: there is no such processor, an argument is wrong, or a table of the output cannot be opened.
        CorruptObject, SourceError: files are changed or missing. Everything else was compacted.
        StoreError: the store could not be read or written. Finished groups stay compacted.
    """
    target = count_of_bytes("target_size", target_size)
    age, kept = duration("older_than", older_than), duration("keep", keep)
    if kept < RETENTION:
        raise UsageError(
            f"keep = {kept:g} s: at least {RETENTION:g} s (1h); queries that were planned before still read the files"
        )
    if at_once < 1:
        raise UsageError(f"at_once = {at_once}: at least 1")
    layout = ProcessorLayout(name)
    async with AsyncExitStack() as stack:
        store = given_store("container", container, "a URL", settings, SYSTEM)
        if store is not container:
            await stack.enter_async_context(store)
        sinks = (settings or Settings.load()).sinks
        tables = await stack.enter_async_context(open_tables(store, layout, sinks))
        found = await _planned(store, layout, target, age)
        began(found)
        if not dry_run:
            declared = await read_schema(store, layout)  # after the listing: it has all columns of the listed files
            if declared is None:
                raise CorruptObject(layout.schema, "is missing; every processor writes it as it starts", store.url)
            try:
                await compact_output(
                    store, layout, found, output_schema(declared), keep=kept, kept=tables.kept_now, at_once=at_once,
                    done=done,
                )  # fmt: skip
            finally:  # groups were rewritten although a later one failed
                if found.changed:
                    await _record(store, layout, found, target)
    found.raise_failed()
    return found


async def _planned(store: Store, layout: ProcessorLayout, target_size: int, older_than: float) -> Compaction:
    if (problem := await missing_processor(store, layout.processor)) is not None:
        raise UsageError(problem)
    partitions = await partitions_with_state(store, layout)
    return Compaction.of(await plan(store, layout, partitions, target_size=target_size, older_than=older_than))


async def _record(store: Store, layout: ProcessorLayout, found: Compaction, target_size: int) -> None:
    effect = f"files made of smaller ones: {found.files_after:,}; replaced files deleted: {found.swept:,}"
    await record_now(store, layout.audit, "compact", {"target_size": f"{target_size:,} bytes"}, effect)
