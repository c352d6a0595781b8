"""`actorproc pause`, `resume`, `drain`, `move`, `release` and `audit`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from actorproc.admin.audit import operator, read_audit
from actorproc.admin.placement import Placement, describe
from actorproc.cli.common import OpenedProcessor, load_settings, opened_processor, run_async
from actorproc.cli.streams import warn
from actorproc.cli.terminal import print_json, print_table
from actorproc.errors import UsageError
from actorproc.group.membership import GroupDocument
from actorproc.storage.names import AUDIT
from actorproc.storage.store import Store
from actorproc.stores import open_store

Act = Callable[[Placement], Awaitable[GroupDocument]]


def carry_out(opened: OpenedProcessor, act: Act, reason: str) -> None:
    """Act on the group, and print the wishes of operators that hold now."""

    async def work() -> str:
        async with opened as (store, layout, settings):
            group = await act(Placement(store, layout, settings, operator(), reason=reason))
            return describe(group.wishes)

    warn(run_async(work))


def release(partition: str | None, host: str | None) -> Act:
    """The act that ends a move or a drain.

    Raises:
        UsageError: neither or both are given.
    """
    if partition is not None and host is None:
        return lambda group: group.release(partition)
    if host is not None and partition is None:
        return lambda group: group.release_host(host)
    raise UsageError("give a partition, or --host HOST")


def show_audit(opened: AbstractAsyncContextManager[tuple[Store, str]], limit: int | None, as_json: bool) -> None:
    """Print the acts, the latest last. `opened`: a store, and the folder of the audit there."""

    async def work() -> None:
        async with opened as (store, audit):
            acts = await read_audit(store, audit, limit)
        if as_json:
            for act in acts:
                row = (_time(act.time), act.who, act.what, dict(act.to), act.effect, act.reason)
                print_json(dict(zip(_COLUMNS, row, strict=True)))
            return

        async def cells() -> AsyncIterator[list[object]]:
            for act in acts:
                yield [_time(act.time), act.who, act.text, act.effect, act.reason]

        columns = ("time", "who", "what", "effect", "reason")
        await print_table(columns, cells(), empty="nobody did anything yet", cut=("effect", "reason"))

    run_async(work)


@asynccontextmanager
async def opened_audit(
    name: str | None, container: str | None, log: str | None, config: Path | None, given: Sequence[str] | None
) -> AsyncIterator[tuple[Store, str]]:
    """The audit of a processor, of a log, or of a container, which keeps the acts on whole processors.

    Raises:
        UsageError: none of them is given, or too much.
    """
    if log is not None:
        async with open_store(log, load_settings(config, given)) as store:
            yield store, AUDIT
    elif container is None:
        raise UsageError("give the --name and --container of a processor, --container alone, or a --log")
    elif name is None:
        async with open_store(container, load_settings(config, given)) as store:
            yield store, AUDIT
    else:
        async with opened_processor(name, container, config, given) as (store, layout, _):
            yield store, layout.audit


_COLUMNS = ("time", "who", "what", "arguments", "effect", "reason")


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # of a stored document, which may say anything
        return f"{seconds:g} s since 1970"
