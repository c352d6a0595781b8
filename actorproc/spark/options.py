"""What a reader asks for: the options of `format("actorproc")`, checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import orjson

from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.spark.dataset import Dataset
from actorproc.spark.dead_letters import DeadLetters
from actorproc.spark.log import Log
from actorproc.spark.output import Output
from actorproc.storage.document import whole_number
from actorproc.stores import open_store

KINDS = ("output", "log", "dead-letters")

SETTING_OPTIONS = ("poll_interval", *(name for name in Settings.model_fields if name.startswith(("s3_", "store_"))))
"""Settings that are options, too: how to reach the store, and how often to look for news."""

SETTINGS_ARE_COMPLETE = "settingsAreComplete"
"""An option that `read_output` and the like set, for us alone: the settings among the options are all that count, and those
not given have their defaults, whatever the environment of Spark's processes says."""

_LIMIT = "a whole number, 1 or more"
_NO_SEQUENCE = 2**63

_OPTIONS = ("path", "name", "kind", "startSequence", "partitions", "tasks", "maxRowsPerTrigger", "maxFilesPerTrigger")


@dataclass(frozen=True)
class ReadOptions:
    """`url`: the container, or the log. `start`: rows from this `_sequence` on, for all partitions or by name.
    `tasks`: most tasks at once. `max_rows`, `max_files`: per trigger."""

    url: str
    dataset: Dataset
    settings: Settings
    partitions: frozenset[str] | None
    start: Mapping[str, int] | int
    tasks: int
    max_rows: int | None
    max_files: int | None

    @property
    def named(self) -> set[str]:
        """Partitions that are asked for by name."""
        return {*(self.partitions or ()), *(() if isinstance(self.start, int) else self.start)}

    def of(self, there: Sequence[str]) -> list[str]:
        """Those of the partitions that are to be read."""
        return [partition for partition in there if self.partitions is None or partition in self.partitions]

    def start_of(self, partition: str) -> int:
        return self.start if isinstance(self.start, int) else self.start.get(partition, 0)

    @property
    def what(self) -> str:
        """For messages."""
        return self.dataset.at(self.url)


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """The request that the options make; their names in any case. Settings that are not given come from this process's
    environment and `actorproc.toml`.

    Raises:
        UsageError, SettingsError: names the option, its value and what is allowed.
    """
    options = {key.lower(): value for key, value in given.items()}
    known = {name.lower(): name for name in (*_OPTIONS, *SETTING_OPTIONS)}
    check_options([name for name in given if name.lower() != SETTINGS_ARE_COMPLETE.lower()], known)
    url = options.get("path")
    if not url:
        raise UsageError('which container (or log)? Say .load("URL") or .option("path", "URL")')
    if url.startswith("memory:"):
        raise UsageError(f"{url} lives in one process, and Spark has several: use a folder or a bucket")
    settings = settings_from_options(options)
    url = open_store(url, settings).url  # in full: tasks may have another working directory
    max_rows = _count(options, "maxRowsPerTrigger")
    dataset = _dataset(options, url)
    if max_rows and isinstance(dataset, DeadLetters):
        raise UsageError("maxRowsPerTrigger does not go with kind = 'dead-letters'; use maxFilesPerTrigger")
    return ReadOptions(
        url=url,
        dataset=dataset,
        settings=settings,
        partitions=_partitions(options.get("partitions")),
        start=_start(options.get("startsequence")),
        tasks=_count(options, "tasks") or os.cpu_count() or 1,
        max_rows=max_rows,
        max_files=_count(options, "maxFilesPerTrigger"),
    )


def check_options(given: Iterable[str], known: Mapping[str, str]) -> None:
    """Check that there are such options. `known`: by their names in small letters.

    Raises:
        UsageError: names the first that there is not, and those that there are.
    """
    for name in given:
        if name.lower() not in known:
            near = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[near[0]]}? There are" if near else "there are"
            raise UsageError(f"there is no option {name}; {hint}: {', '.join(known.values())}")


def settings_as_options(settings: Settings) -> dict[str, str]:
    """The options that carry all that `settings` say of the store: Spark's processes then look nowhere else."""
    chosen = settings.model_dump(include=set(SETTING_OPTIONS), exclude_none=True)
    return {name: str(value) for name, value in chosen.items()} | {SETTINGS_ARE_COMPLETE: "true"}


def explicit_settings_as_options(settings: Settings) -> dict[str, str]:
    """The options that carry what was given of `settings`; the rest is for a server's own environment to say."""
    chosen = settings.model_dump(include=set(SETTING_OPTIONS) & settings.model_fields_set, exclude_none=True)
    return {name: str(value) for name, value in chosen.items()}


def settings_from_options(options: Mapping[str, str]) -> Settings:
    """The settings that ride among `options`, whose names are in small letters; those that do not come from this process's
    environment and `actorproc.toml`, unless the options say that they are complete."""
    given: dict[str, Any] = {name: options[name] for name in SETTING_OPTIONS if name in options}
    return Settings(**given) if SETTINGS_ARE_COMPLETE.lower() in options else Settings.load(**given)


def _dataset(options: Mapping[str, str], url: str) -> Dataset:
    kind, name = options.get("kind", "output"), options.get("name")
    if kind not in KINDS:
        raise UsageError(f"kind = {kind!r}: {', '.join(KINDS)}")
    if kind == "log":
        if name:
            raise UsageError(f"name = {name!r} does not go with kind = 'log'; a log has its URL alone")
        return Log(url)
    if not name:
        raise UsageError(f'{kind} of which processor? Say .option("name", "NAME")')
    return Output(name) if kind == "output" else DeadLetters(name)


def _count(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    number = whole_number(value.strip())
    if not number:
        raise UsageError(f"{name} = {value!r:.100}: {_LIMIT}")
    return number


def _partitions(value: str | None) -> frozenset[str] | None:
    """Names in a JSON list, or with commas between them."""
    if value is None:
        return None
    named = _json(value) if value.lstrip().startswith("[") else [name.strip() for name in value.split(",")]
    if not isinstance(named, list) or not named or "" in named:
        raise UsageError(f"partitions = {value!r}: names such as 0,1,5, or a JSON list of them")
    return frozenset(map(str, named))


def _start(value: str | None) -> Mapping[str, int] | int:
    """A number for all partitions, or a JSON object with one by name."""
    start = 0 if value is None else _json(value)
    check_start_sequence(f"startSequence = {value!r}", start)
    found: Mapping[str, int] | int = start
    return found


def check_start_sequence(what: str, start: object) -> None:
    """Check that it is a sequence, or sequences by partition. `what` was given, for the message.

    Raises:
        UsageError: says what is allowed.
    """
    numbers = list(start.values()) if isinstance(start, Mapping) else [start]
    if not all(type(number) is int and 0 <= number < _NO_SEQUENCE for number in numbers):  # True is an int, too
        allowed = 'a whole number, 0 or more, or such numbers by partition: {"0": 1200, "1": 950}'
        raise UsageError(f"{what}: {allowed}")


def check_limit(what: str, limit: object) -> None:
    """Check that it is a limit, or None. `what` was given, for the message.

    Raises:
        UsageError: says what is allowed.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"{what} = {limit!r}: {_LIMIT}")


def checked_names(what: str, given: object) -> list[str]:
    """The names in a list that was given as `what`: at least one, each once.

    Raises:
        UsageError: says what is allowed.
    """
    names = [] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else [str(name) for name in given]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{what} = {given!r}: a list of names, at least one, each once")
    return names


def check_partitions(named: Iterable[str], there: Sequence[str], what: str) -> None:
    """Check that the dataset has these partitions.

    Args:
        there: those that it has.
        what: the dataset, for the message.

    Raises:
        UsageError: names those that are not there, and those that are.
    """
    if missing := sorted(set(named).difference(there)):
        raise UsageError(f"{what} has no partition {', '.join(missing)}; there are: {', '.join(there) or 'none yet'}")


def _json(value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
