"""Readers added and removed from outside of what reads: for programs what `actorproc readers` is for people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import PathLike

from actorproc.admin.reader_positions import position_of
from actorproc.admin.retained import RetainedDataset, RetainedLog, RetainedOutput
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.group.locations import missing_processor
from actorproc.log.metadata import open_log
from actorproc.retention.readers import Reader, register, remove
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.stores import open_store

StrPath = str | PathLike[str]


@asynccontextmanager
async def opened_kept(
    settings: Settings, *, container: StrPath | None = None, name: str | None = None, log: StrPath | None = None
) -> AsyncIterator[RetainedDataset]:
    """The log, or else the output of processor `name` in the container.

    Raises:
        UsageError: it is not there, or not said which.
    """
    if log is not None:
        async with open_store(log, settings) as store:
            await open_log(store, instead="for a processor's output --name {processor} --container {container}")
            yield RetainedLog(store)
    elif container is not None and name is not None:
        async with open_store(container, settings) as store:
            if (problem := await missing_processor(store, name)) is not None:
                raise UsageError(problem)
            yield RetainedOutput(store, ProcessorLayout(name))
    else:
        raise UsageError("readers of what? Give container and name of a processor's output, or the log")


async def add_to(kept: RetainedDataset, reader: Reader, settings: Settings) -> Mapping[str, int]:
    """Register a reader where it stands; the numbers that it reads next, by partition: none, if it has not begun.

    Raises:
        UsageError: what it reads next was trimmed, or is in no partition that there is; or another reader has its name.
        ActorprocError: it cannot be told how far it is.
    """
    partitions = await kept.partitions()
    if unknown := sorted(reader.positions.keys() - set(partitions), key=natural):
        there = ", ".join(sorted(partitions, key=natural)) or "none yet"
        raise UsageError(f"reader {reader.name!r} of {kept}: no partition {unknown[0]!r}; there are: {there}")
    positions = await position_of(kept, reader, partitions, settings)
    await register(kept.store, kept.readers, reader, positions)
    return positions


async def add_reader(
    reader: Reader,
    *,
    container: StrPath | None = None,
    name: str | None = None,
    log: StrPath | None = None,
    settings: Settings | None = None,
) -> None:
    """From now on `actorproc trim` leaves what `reader` has not read. Again for each move of one that is moved by hand.

    Args:
        container, name: of the processor whose output it reads; or
        log: URL or folder of the log that it reads.
        settings: how to reach the store; default: environment and `actorproc.toml`.

    Raises:
        UsageError: there is no such output or log; what it reads next was trimmed, or is in no partition that there is; or
            another reader has its name.
        ActorprocError: it cannot be told how far it is.
    """
    settings = settings or Settings.load()
    async with opened_kept(settings, container=container, name=name, log=log) as kept:
        await add_to(kept, reader, settings)


async def remove_reader(
    reader: str,
    *,
    container: StrPath | None = None,
    name: str | None = None,
    log: StrPath | None = None,
    settings: Settings | None = None,
) -> None:
    """Keep nothing for the reader of this name any more. Arguments as of `add_reader`.

    Raises:
        UsageError: there is none of this name; names those there are.
    """
    async with opened_kept(settings or Settings.load(), container=container, name=name, log=log) as kept:
        await remove(kept.store, kept.readers, reader)
