"""Steps that commands share: read settings, open a processor's container, run on an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio

from actorproc.config.settings import Settings
from actorproc.config.store_options import store_options
from actorproc.config.validation import is_secret
from actorproc.errors import ActorprocError, SettingsError, UsageError
from actorproc.output.row_reader import partitions_with_state
from actorproc.runtime.clock import SYSTEM
from actorproc.storage.locations import missing_processor
from actorproc.storage.names import ProcessorLayout, natural
from actorproc.storage.store import Store
from actorproc.stores import open_store, with_source_options

T = TypeVar("T")

OpenedProcessor = AbstractAsyncContextManager[tuple[Store, ProcessorLayout, Settings]]

_RETRY_AFTER = 0.5  # seconds


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`name=value` texts as a dictionary.

    Raises:
        SettingsError: a text has no name or no '='.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{option} {text!r}: write {option} name=value")
        found[name.strip()] = value
    return found


def load_settings(
    config: Path | None, given: Sequence[str] | None, source_options: Sequence[str] | None = None
) -> Settings:
    """Settings from `--set` and `--source-option`, the environment and the file, in this order of precedence."""
    return Settings.load(config, **setting_keywords(given, source_options))


def settings_of_log(url: str | None, settings: Settings, options: Sequence[str] | None) -> Settings:
    """Settings for the log of `--log` or `--into`, which may lie in another account: `--source-option` says so.

    Raises:
        UsageError: the log's store does not take an option, or there are options and no log.
    """
    if url is None and options:
        raise UsageError("--source-option is for a log: give --log, too")
    if url is None:
        return settings
    given = settings.model_copy(update={"source_options": pairs("--source-option", options)})
    return with_source_options(url, given)


def setting_keywords(
    given: Sequence[str] | None,
    source_options: Sequence[str] | None,
    sinks: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Settings by name, as `--set`, `--source-option` and `--sink` give them."""
    keywords: dict[str, Any] = dict(pairs("--set", given))
    if source_options:
        keywords["source_options"] = pairs("--source-option", source_options)
    if sinks:
        keywords["sinks"] = sinks
    return keywords


def sink_settings(sinks: Sequence[str] | None, options: Sequence[str] | None) -> dict[str, dict[str, str]]:
    """The setting `sinks`, as `--sink` and `--sink-option` give it.

    Raises:
        SettingsError: a text has another form, or an option is of a sink that has no `--sink`.
    """
    found = {name: {"url": url} for name, url in pairs("--sink", sinks).items()}
    for text, value in pairs("--sink-option", options).items():
        name, dot, option = text.partition(".")
        if not dot or name not in found:
            raise SettingsError(
                f"--sink-option {text}={value}: write NAME.OPTION=VALUE, where --sink NAME=URL gives the sink"
            )
        found[name][option] = value
    return found


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on an event loop of its own.

    Raises:
        ActorprocError: a task or callback of the user's called `sys.exit`, which ends the event loop.
    """
    try:
        return anyio.run(work)
    except SystemExit as stray:
        raise ActorprocError(
            f"a task or callback beside the handler called sys.exit({stray.code!r}), which ended the process. Raise "
            "another exception there. Commits are safe; start again to continue"
        ) from stray


@asynccontextmanager
async def opened_processor(
    name: str,
    container: str,
    config: Path | None,
    given: Sequence[str] | None,
    wait: float = 0.0,
    source_options: Sequence[str] | None = None,
    may_be_new: bool = False,
) -> AsyncIterator[tuple[Store, ProcessorLayout, Settings]]:
    """The store and layout of a processor that has run there.

    Args:
        wait: seconds to wait for its first run to begin.
        may_be_new: it need not have run.

    Raises:
        UsageError: it has never run there; lists the processors that have.
    """
    layout, settings = ProcessorLayout(name), load_settings(config, given, source_options)
    async with open_store(container, settings) as store:
        deadline = SYSTEM.monotonic() + wait
        while not may_be_new and (problem := await missing_processor(store, name)) is not None:
            if SYSTEM.monotonic() >= deadline:
                raise UsageError(problem)
            await SYSTEM.sleep(_RETRY_AFTER)
        yield store, layout, settings


async def chosen_partitions(store: Store, layout: ProcessorLayout, partition: str | None) -> list[str]:
    """All partitions with state, or the chosen one.

    Raises:
        UsageError: the partition does not exist; lists those that do.
    """
    partitions = sorted(await partitions_with_state(store, layout), key=natural)
    if partition is None:
        return partitions
    if partition not in partitions:
        raise UsageError(f"no partition {partition!r}; there are: {', '.join(partitions) or 'none yet'}")
    return [partition]


def shown_settings(given: Iterable[str]) -> list[str]:
    """The `--set` options that another command needs to reach the store, without secrets."""
    options = store_options(given)
    named = ((setting.partition("=")[0].strip(), setting) for setting in given)
    wanted = [setting for name, setting in named if name in options and not is_secret(name, options[name])]
    return [part for setting in wanted for part in ("--set", setting)]
