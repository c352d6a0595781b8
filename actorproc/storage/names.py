"""Names of the objects in a container and in a log, and the characters allowed in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from actorproc.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
GROUP = "group.json"
READERS = "readers.json"
DIGITS = 20  # of a number in a key: any 64-bit number, and keys sort as numbers do


def checked_name(kind: str, value: str) -> str:
    """`value`, if keys may contain it.

    Raises:
        UsageError: they may not. Names the kind, the value and the allowed characters.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UsageError(
            f"{kind} {value!r} is not usable: 1 to 128 letters, digits, '.', '_' or '-', and the first a letter or "
            "digit"
        )
    return value


def numbered(number: int, suffix: str) -> str:
    return f"{number:0{DIGITS}d}{suffix}"


def number_of(key: str) -> int:
    """The number in a key that is known to be numbered."""
    return int(key.rpartition("/")[2].partition(".")[0].partition("-")[0])


def number_in(folder: str, key: str, suffix: str = ".parquet") -> int | None:
    """The number of a file listed in `folder`; None for a foreign object."""
    digits = key.removeprefix(folder).removesuffix(suffix)
    if not digits.isdecimal():
        return None
    number = int(digits)
    return number if key == folder + numbered(number, suffix) else None


def number_before_id(folder: str, key: str, suffix: str = ".parquet") -> int | None:
    """The number of a file with a put-id after its number; None for a foreign object."""
    number, dash, put_id = key.removeprefix(folder).removesuffix(suffix).partition("-")
    ours = key.startswith(folder) and key.endswith(suffix) and dash and put_id and "/" not in put_id
    return number_in("", number, "") if ours else None


def folder_of(key: str) -> str:
    return key[: key.rfind("/") + 1]


def partition_dir(partition: str) -> str:
    return f"partition={quote(partition, safe='')}/"


def partition_of(key: str) -> str:
    """The partition whose folder is in `key`. Raises ValueError if there is none."""
    for part in key.split("/"):
        if part.startswith("partition="):
            return unquote(part.removeprefix("partition="))
    raise ValueError(f"no partition in key {key!r}")


def partition_key(prefix: str, partition: str) -> str:
    """The key of a partition's document below `prefix`."""
    return f"{prefix}{quote(partition, safe='')}.json"


def document_partition(key: str) -> str:
    """The partition of a key that is known to be a document."""
    return unquote(key.rpartition("/")[2].removesuffix(".json"))


def partition_in(prefix: str, key: str) -> str | None:
    """The partition of a document listed below `prefix`; None for a foreign object."""
    partition = document_partition(key)
    return partition if key == partition_key(prefix, partition) else None


class Attached(NamedTuple):
    """A kind of objects beside commits, under keys `<folder>partition=<p>/<number>-<put-id><suffix>`."""

    folder: str
    suffix: str


LARGE_LETTERS = Attached("large-letters/", ".zst")
"""Dead letters that are too large for the footer of their commit, compressed."""

STATE = Attached("state/", ".parquet")
"""Keyed state: the changes of one commit, or of several."""


AUDIT = "_audit/"
"""At the root of a container or log: acts on whole processors, and on the log. No processor can have this name."""


class ProcessorLayout:
    """Keys of one processor, relative to its container."""

    def __init__(self, processor: str) -> None:
        self.processor = checked_name("processor name", processor)
        self.root = root = self.processor + "/"
        self.hosts = root + "hosts/"
        self.group = root + GROUP
        self.checkpoints = root + "checkpoints/"
        self.output = root + "output/"
        self.dead_letters = root + "dead-letters/"
        self.replays = root + "replays/"
        self.boundaries = root + "boundaries/"
        self.readers = root + READERS
        self.compacted = root + "compacted/"
        self.compacted_within = self.output + "_compacted/"  # readers of plain Parquet pass over such a name
        self.schema = root + "schema.json"
        self.origin = root + "source.json"
        self.probe = root + "probe/"
        self.audit = root + "audit/"
        self.history = root + "history/"
        self.sinks = root + "sinks/"

    def host(self, host: str, incarnation: str) -> str:
        """Heartbeat of one incarnation. The incarnation is in the key, so that one LIST tells who is there
        and a DELETE or PUT that lands late can only touch the incarnation that sent it."""
        return f"{self.hosts}{host}~{incarnation}.json"

    def sink_progress(self, sink: str, partition: str) -> str:
        """How far a sink is in one partition, for trims and operators."""
        return partition_key(f"{self.sinks}{sink}/", partition)

    def sink_row(self, sink: str, partition: str) -> str:
        """The position of a sink whose target cannot keep one."""
        return partition_key(f"{self.sinks}{sink}/rows/", partition)

    def history_file(self, host: str, nonce: str) -> str:
        """Of one life of a host, from its start to its end."""
        return f"{self.history}{host}~{nonce}.parquet"

    def checkpoint(self, partition: str) -> str:
        return partition_key(self.checkpoints, partition)

    def boundary(self, partition: str) -> str:
        return partition_key(self.boundaries, partition)

    def output_dir(self, partition: str) -> str:
        return self.output + partition_dir(partition)

    def output_file(self, partition: str, number: int) -> str:
        return self.output_dir(partition) + numbered(number, ".parquet")

    def compacted_dir(self, partition: str, *, within: bool = False) -> str:
        """Args:
        within: the one in the folder of the output.
        """
        return (self.compacted_within if within else self.compacted) + partition_dir(partition)

    def compacted_file(self, partition: str, first: int, put_id: str, *, within: bool = False) -> str:
        """Rows of the commits from number `first` on. The put-id is in the key, so that it is never written over."""
        return self.compacted_dir(partition, within=within) + numbered(first, f"-{put_id}.parquet")

    def dead_letter_dir(self, partition: str) -> str:
        return self.dead_letters + partition_dir(partition)

    def dead_letter_file(self, partition: str, number: int) -> str:
        return self.dead_letter_dir(partition) + numbered(number, ".jsonl")

    def is_dead_letter_file(self, key: str) -> bool:
        """Whether a key listed below `dead_letters` is one of them."""
        folder = folder_of(key)
        ours = folder.startswith(self.dead_letters + "partition=") and number_in(folder, key, ".jsonl") is not None
        return ours and folder == self.dead_letter_dir(partition_of(key))

    def attached(self, kind: Attached, partition: str, number: int, put_id: str) -> str:
        """The key of an object that belongs to commit `number`, if that has this put-id."""
        return self.attached_dir(kind, partition) + numbered(number, f"-{put_id}{kind.suffix}")

    def attached_dir(self, kind: Attached, partition: str) -> str:
        return self.root + kind.folder + partition_dir(partition)

    def replay(self, partition: str, number: int) -> str:
        """How far the replay of dead-letter file `number` is."""
        return self.replays + partition_dir(partition) + numbered(number, ".json")


def host_of(key: str) -> tuple[str, str]:
    """(host, incarnation) of a heartbeat key. Raises ValueError for any other key."""
    host, tilde, incarnation = key.rpartition("/")[2].removesuffix(".json").rpartition("~")
    if not tilde or not host or not incarnation or not key.endswith(".json"):
        raise ValueError(f"{key!r} is no heartbeat")
    return host, incarnation


LOG_META = "log.json"
LOG_HINTS = "heads/"
LOG_BOUNDARIES = "boundaries/"
LOG_STAGED = "staged/"


def log_hint(producer: str) -> str:
    return f"{LOG_HINTS}{producer}.json"


def is_log_hint(key: str) -> bool:
    """Whether a key listed below `LOG_HINTS` is a hint of a producer."""
    name = key.removeprefix(LOG_HINTS)
    return name.endswith(".json") and _NAME.fullmatch(name.removesuffix(".json")) is not None


def log_dir(partition: str) -> str:
    return partition_dir(partition)


def log_file(partition: str, base: int) -> str:
    return log_dir(partition) + numbered(base, ".parquet")


def log_boundary(partition: str) -> str:
    return partition_key(LOG_BOUNDARIES, partition)


def log_transaction(name: str) -> str:
    return f"transactions/{checked_name('transaction', name)}.json"


def log_staged(transaction: str, batch: int, nonce: str) -> str:
    """Records that are to be appended in batch `batch` of the transaction."""
    return f"{LOG_STAGED}{transaction}/{numbered(batch, '')}/{nonce}.arrow"


def batch_of_staged(key: str) -> tuple[str, int] | None:
    """(transaction, batch) of staged records listed below `LOG_STAGED`; None for any other key."""
    parts = key.removeprefix(LOG_STAGED).split("/")
    if len(parts) != 3 or not parts[2].endswith(".arrow"):
        return None
    number = number_in("", parts[1], "")
    return None if number is None else (parts[0], number)


def natural(name: str) -> tuple[int, str]:
    """Sorts "2" before "10", and names that are no numbers after those that are, as texts."""
    return (int(name), name) if name.isdecimal() else (2**63, name)


def named_partitions(names: Sequence[str]) -> str:
    """`partition 3`, `partitions 0-7, 9`; in the order in which they are given."""
    runs: list[list[str]] = []
    for name in names:
        follows = runs and name.isdecimal() and runs[-1][-1].isdecimal() and int(name) == int(runs[-1][-1]) + 1
        runs[-1].append(name) if follows else runs.append([name])
    shown = ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"partition{'' if len(names) == 1 else 's'} {shown}"
