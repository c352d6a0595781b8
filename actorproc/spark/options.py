"""The options of `format("actorproc")` for reading and for writing, parsed and checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import orjson

from actorproc.config.options import with_secrets
from actorproc.config.settings import Settings
from actorproc.config.store_options import store_options
from actorproc.errors import UsageError
from actorproc.produce.transactions import UNNAMED
from actorproc.spark.dataset import SparkDataset
from actorproc.spark.dead_letter_dataset import DeadLetters
from actorproc.spark.log_dataset import Log
from actorproc.spark.output_dataset import Output
from actorproc.storage.document import whole_number
from actorproc.storage.names import checked_name
from actorproc.stores import open_store

KINDS = ("output", "log", "dead-letters")

SETTING_OPTIONS = ("poll_interval", *(name for name in Settings.model_fields if name.startswith("store_")))
"""Settings that are also options, beside those that stores declare."""

SETTINGS_ARE_COMPLETE = "settingsAreComplete"
"""Internal option, set by `read_output` and the like. With it, settings that are not among the options have their
defaults, whatever the environment of Spark's processes says."""

_READ_OPTIONS = (
    "path", "name", "kind", "startSequence", "partitions", "tasks", "maxRowsPerTrigger", "maxFilesPerTrigger",
)  # fmt: skip
_WRITE_OPTIONS = ("path", "kind", "logPartitions", "transaction", "batch")
_SPARK_OPTIONS = ("checkpointlocation", "queryname")  # Spark passes its own options on
_MAX_SEQUENCE = 2**63 - 1


@dataclass(frozen=True)
class ReadOptions:
    """The dataset to read, and which part of it.

    Attributes:
        url: of the container, or of the log.
        partitions: only these; None: all.
        start: only rows from this `_sequence` on, for all partitions or by partition.
        tasks: most tasks at once.
        max_rows, max_files: limits per trigger.
    """

    url: str
    dataset: SparkDataset
    settings: Settings
    partitions: frozenset[str] | None
    start: Mapping[str, int] | int
    tasks: int
    max_rows: int | None
    max_files: int | None

    @property
    def named_partitions(self) -> set[str]:
        """Partitions that the options name. They must exist."""
        return {*(self.partitions or ()), *(() if isinstance(self.start, int) else self.start)}

    def select(self, partitions: Sequence[str]) -> list[str]:
        """Those of the dataset's partitions that are to be read."""
        return [partition for partition in partitions if self.partitions is None or partition in self.partitions]

    def start_of(self, partition: str) -> int:
        return self.start if isinstance(self.start, int) else self.start.get(partition, 0)

    @property
    def title(self) -> str:
        """The dataset, for messages."""
        return self.dataset.title(self.url)


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a reader. Their names are case-insensitive.

    Settings that are not among the options come from this process's environment and `actorproc.toml`.

    Raises:
        UsageError, SettingsError: an option is unknown, missing or has a wrong value.
    """
    options = _by_lower_name(given, _READ_OPTIONS)
    url = _path(options, 'which container (or log)? Say .load("URL") or .option("path", "URL")')
    settings = settings_from_options(options)
    url = open_store(url, settings).url  # absolute: tasks may have another working directory
    max_rows, dataset = _number(options, "maxRowsPerTrigger"), _dataset(options, url)
    if max_rows and isinstance(dataset, DeadLetters):
        raise UsageError("maxRowsPerTrigger does not go with kind = 'dead-letters'; use maxFilesPerTrigger")
    return ReadOptions(
        url=url,
        dataset=dataset,
        settings=settings,
        partitions=_partitions(options.get("partitions")),
        start=_start(options.get("startsequence")),
        tasks=_number(options, "tasks") or os.cpu_count() or 1,
        max_rows=max_rows,
        max_files=_number(options, "maxFilesPerTrigger"),
    )


@dataclass(frozen=True)
class WriteOptions:
    """The log to append to.

    Attributes:
        url: of the log.
        partitions: creates the log with so many if there is none; None: the log must exist.
        transaction, batch: make a batch job idempotent.
    """

    url: str
    settings: Settings
    partitions: int | None
    transaction: str | None
    batch: int


def parse_write_options(given: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Parse the options of a writer; otherwise as `parse_read_options`.

    Raises:
        UsageError, SettingsError: an option is unknown, missing or has a wrong value.
    """
    own = {name: value for name, value in given.items() if name.lower() not in _SPARK_OPTIONS}
    options = _by_lower_name(own, _WRITE_OPTIONS)
    url = _path(options, 'which log? Say .save("URL"), .start("URL") or .option("path", "URL")')
    if (kind := options.get("kind", "log")) != "log":
        raise UsageError(f"kind = {kind!r}: Spark can only append to a log")
    settings = settings_from_options(options)
    return WriteOptions(
        url=open_store(url, settings).url,  # absolute: tasks may have another working directory
        settings=settings,
        partitions=_number(options, "logPartitions"),
        transaction=_transaction(options, stream=stream),
        batch=_number(options, "batch", least=0) or 0,
    )


def _transaction(options: Mapping[str, str], *, stream: bool) -> str | None:
    transaction = options.get("transaction")
    if stream and (transaction or "batch" in options):
        raise UsageError("transaction and batch are for batch jobs: a stream is identified by its checkpoint")
    if transaction and checked_name("transaction", transaction).startswith(UNNAMED):
        raise UsageError(f"transaction = {transaction!r}: a name that does not begin with {UNNAMED!r}")
    if "batch" in options and not transaction:
        raise UsageError("batch needs a transaction: the name under which batches are counted")
    return transaction


def _by_lower_name(given: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """The options by lower-case name.

    Raises:
        UsageError: one is not allowed; suggests a similar one.
    """
    known = {name.lower(): name for name in (*allowed, *SETTING_OPTIONS, *store_options(given))}
    for name in given:
        if name.lower() not in known and name.lower() != SETTINGS_ARE_COMPLETE.lower():
            near = get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {known[near[0]]}? There are" if near else "there are"
            raise UsageError(f"there is no option {name}; {hint}: {', '.join(known.values())}")
    return {name.lower(): value for name, value in given.items()}


def _path(options: Mapping[str, str], missing: str) -> str:
    url = options.get("path")
    if not url:
        raise UsageError(missing)
    if url.startswith("memory:"):
        raise UsageError(f"{url} exists in one process, and Spark has several: use a folder or a bucket")
    return url


def settings_as_options(settings: Settings) -> dict[str, str]:
    """Options that carry all settings of the store: Spark's processes then look nowhere else."""
    chosen = settings.model_dump(include=set(SETTING_OPTIONS), exclude_none=True) | _of_store(settings)
    return {name: str(value) for name, value in chosen.items()} | {SETTINGS_ARE_COMPLETE: "true"}


def explicit_settings_as_options(settings: Settings) -> dict[str, str]:
    """Options that carry only the settings that were given; a server's own environment decides the others."""
    chosen = settings.model_dump(include=set(SETTING_OPTIONS) & settings.model_fields_set, exclude_none=True)
    return {name: str(value) for name, value in (chosen | _of_store(settings)).items()}


def _of_store(settings: Settings) -> dict[str, Any]:
    """The settings that stores declare. Files of `@PATH` are read here: Spark's processes may run elsewhere."""
    options = with_secrets("store option", settings.store_options)
    return {name: f"@{text}" if str(text).startswith("@") else text for name, text in options.items()}


def settings_from_options(options: Mapping[str, str]) -> Settings:
    """The settings among the options, whose names are in lower case. Unless the options are complete, the others come
    from this process's environment and `actorproc.toml`."""
    names = {*SETTING_OPTIONS, *store_options(options)} & options.keys()
    given: dict[str, Any] = {name: options[name] for name in names}
    return Settings(**given) if SETTINGS_ARE_COMPLETE.lower() in options else Settings.load(**given)


def _dataset(options: Mapping[str, str], url: str) -> SparkDataset:
    kind, name = options.get("kind", "output"), options.get("name")
    if kind not in KINDS:
        raise UsageError(f"kind = {kind!r}: {', '.join(KINDS)}")
    if kind == "log":
        return Log(url)
    if not name:
        raise UsageError(f'{kind} of which processor? Say .option("name", "NAME")')
    return Output(name) if kind == "output" else DeadLetters(name)


def _number(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    number = whole_number(value.strip())
    if number is None or number < least:
        raise UsageError(f"{name} = {value!r:.100}: a whole number, {least} or more")
    return number


def _partitions(value: str | None) -> frozenset[str] | None:
    """Names in a JSON list, or separated by commas."""
    if value is None:
        return None
    named = _json(value) if value.lstrip().startswith("[") else [name.strip() for name in value.split(",")]
    if not isinstance(named, list) or not named or "" in named:
        raise UsageError(f"partitions = {value!r}: names such as 0,1,5, or a JSON list of names")
    return frozenset(map(str, named))


def _start(value: str | None) -> Mapping[str, int] | int:
    """One number for all partitions, or a JSON object of numbers by partition."""
    start = 0 if value is None else _json(value)
    check_start_sequence(f"startSequence = {value!r}", start)
    found: Mapping[str, int] | int = start
    return found


def check_start_sequence(given: str, start: object) -> None:
    """Check a sequence, or sequences by partition. `given`: for the message.

    Raises:
        UsageError: it is neither.
    """
    numbers = list(start.values()) if isinstance(start, Mapping) else [start]
    if not all(type(number) is int and 0 <= number <= _MAX_SEQUENCE for number in numbers):  # True is an int, too
        allowed = 'a whole number, 0 or more, or such numbers by partition: {"0": 1200, "1": 950}'
        raise UsageError(f"{given}: {allowed}")


def checked_names(what: str, given: object) -> list[str]:
    """The names in the list, which the message calls `what`: at least one, each once.

    Raises:
        UsageError: it is something else.
    """
    names = [] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else [str(name) for name in given]
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{what} = {given!r}: a list of names, at least one, each once")
    return names


def check_partitions(named: Iterable[str], partitions: Sequence[str], title: str) -> None:
    """Check that the dataset, called `title` in the message, has the named partitions.

    Raises:
        UsageError: some do not exist; lists those that do.
    """
    if missing := sorted(set(named).difference(partitions)):
        existing = ", ".join(partitions) or "none yet"
        raise UsageError(f"{title} has no partition {', '.join(missing)}; there are: {existing}")


def _json(value: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
