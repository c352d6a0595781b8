"""The contract of a table: another system's table format that names the files of the output, and how far it is.

Protocol: docs/protocol.md, 'Tables'. Model: tests/protocol/table_model.py, whose names of rules are used here.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from actorproc.sinks.protocol import Guarantee, SinkTarget
from actorproc.sinks.tables.options import TableOptions
from actorproc.storage.names import ProcessorLayout, folder_of, number_before_id, number_in, partition_of
from actorproc.storage.store import Store


class Place(NamedTuple):
    """How far a table is in one partition."""

    position: int
    """Number of the next commit to take."""
    seen: int
    """`Boundary.changes` of the boundary that the latest transaction was based on."""
    mark: int = 0
    """Of the put-id of the commit before `position`; 0: not known. It shows a container that was restored."""


class NamedFile(NamedTuple):
    """A file of the output that a table names."""

    partition: str
    first: int
    """Number of its first commit."""
    compacted: bool


class OtherFile(NamedTuple):
    """A file that is none of the output: a stranger has rewritten or added rows, it is a copy that a reset has made, or
    one of another processor."""

    key: str | None
    """In the container; None: it is elsewhere."""
    partition: str | None
    """None: not known."""
    whose: Literal["ours", "another", "unknown"] = "unknown"
    """By its path.

    - `ours`: it is in the folder of the processor.
    - `another`: it is of a processor with another name.
    - `unknown`: it may have rows of ours that somebody has rewritten, or rows of others.
    """


_OUTPUT = re.compile(
    r"(?:^|/)(?P<processor>[^/]+)/(?:output|compacted|output/_compacted)/partition=[^/]+/\d{20}(?:-[^/]+)?\.parquet$"
)


def _whose(layout: ProcessorLayout, key: str | None, name: str) -> Literal["ours", "another", "unknown"]:
    """See `OtherFile.whose`."""
    if key is not None and key.startswith(layout.root):
        return "ours"
    found = _OUTPUT.search(name if key is None else key)
    # One with our name, elsewhere, may be of this processor before its container was moved.
    return "unknown" if found is None or found["processor"] == layout.processor else "another"


class NamedFiles:
    """The files that a table names."""

    def __init__(self, layout: ProcessorLayout) -> None:
        self._layout = layout
        self._folders: dict[str, _Folder | None] = {}  # by name
        self._ours: dict[str, dict[str, NamedFile]] = {}
        self.others: dict[str, OtherFile] = {}
        """By name, as the table spells it."""

    def _named(self, key: str) -> NamedFile | None:
        """As `named_file`, in less time: a table has many files in few folders."""
        name = folder_of(key)
        if name not in self._folders:
            self._folders[name] = _folder(self._layout, name)
        folder = self._folders[name]
        return None if folder is None else _file_in(folder, key[len(name) :])

    def add(self, key: str | None, name: str, partition: str | None = None) -> None:
        """The table names this file.

        Args:
            key: in the container; None: it is elsewhere.
            partition: as the table says.
        """
        if key is None or (found := self._named(key)) is None:
            self.others[name] = OtherFile(key, partition, _whose(self._layout, key, name))
        else:
            self._ours.setdefault(found.partition, {})[key] = found

    def remove(self, key: str | None, name: str) -> None:
        """It does not name it any more."""
        self.others.pop(name, None)
        if key is not None and (found := self._named(key)) is not None:
            self._ours.get(found.partition, {}).pop(key, None)

    def of(self, partition: str) -> Mapping[str, NamedFile]:
        """Our files of a partition, by key."""
        return self._ours.get(partition, {})

    def keys(self) -> set[str]:
        """Of all files in the container."""
        ours = {key for files in self._ours.values() for key in files}
        return ours | {other.key for other in self.others.values() if other.key is not None}

    def others_of(self, partition: str) -> Mapping[str, OtherFile]:
        """The files of a partition beside the output's that may have rows of ours, by name."""
        return {
            name: other
            for name, other in self.others.items()
            if other.partition == partition and other.whose != "another"
        }

    def __len__(self) -> int:
        return sum(map(len, self._ours.values()))

    @property
    def partitions(self) -> list[str]:
        """Those of which files are named."""
        return [partition for partition, files in self._ours.items() if files]


class _Folder(NamedTuple):
    """A folder with files of a partition."""

    partition: str
    compacted: bool


def _folder(layout: ProcessorLayout, name: str) -> _Folder | None:
    """The folder of this name; None for any other one."""
    try:
        partition = partition_of(name)
    except ValueError:
        return None
    compacted = [layout.compacted_dir(partition, within=within) for within in (False, True)]
    if name == layout.output_dir(partition):
        return _Folder(partition, compacted=False)
    return _Folder(partition, compacted=True) if name in compacted else None


def _file_in(folder: _Folder, name: str) -> NamedFile | None:
    number = number_before_id("", name) if folder.compacted else number_in("", name)
    if number is None or (folder.compacted and name.partition("-")[2].startswith(CUT)):
        return None
    return NamedFile(folder.partition, number, folder.compacted)


def named_file(layout: ProcessorLayout, key: str) -> NamedFile | None:
    """The commits that a file holds, by its key; None for any other object."""
    name = folder_of(key)
    folder = _folder(layout, name)
    return None if folder is None else _file_in(folder, key[len(name) :])


CUT = "cut-"
"""Begins the put-id in the name of a copy without the rows that a reset has taken back."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One version of a table.

    Attributes:
        count: of our transactions so far.
        life: of the registration that made the latest one; 0: there was none.
        places: by partition.
        files: that it names.
        version: as its format counts, for people.
        set_back: somebody has made an earlier version the newest one, so that files are missing below the positions.
    """

    count: int
    life: int
    places: Mapping[str, Place]
    files: NamedFiles
    version: int | str = 0
    set_back: bool = False


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that the table is to name.

    Attributes:
        note: what `TableSink.describe` has made of its footer.
        new_rows: whether its rows were not in the table before.
    """

    key: str
    partition: str
    size: int
    rows: int
    time: float
    note: Any = None
    new_rows: bool = True


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that the table is not to name any more.

    Attributes:
        key: of a file of ours; or as the table spells it, one of `NamedFiles.others`.
        rows_go: whether its rows leave the table with it.
    """

    key: str
    partition: str
    rows_go: bool = False


@dataclass(frozen=True, slots=True)
class TableChange:
    """One transaction. `places`: of partitions that move."""

    life: int
    places: Mapping[str, Place] = field(default_factory=dict)
    adds: Sequence[AddedFile] = ()
    removes: Sequence[RemovedFile] = ()


@dataclass(frozen=True, slots=True)
class TableHome:
    """What a table belongs to: its files are in `store`, with keys of `layout`.

    Attributes:
        identity: of the processor: counters of the table are kept under it, so that another processor of this name
            does not take them for its own.
    """

    store: Store
    layout: ProcessorLayout
    identity: str


class TableSink(SinkTarget):
    """A table that names the files of the output. One committer of all hosts makes its transactions.

    A table is registered under the scheme of its URL, in the same group as row sinks, as a class or function of (url,
    options, place). Every method but `close` may raise `SinkError`, and whatever the client raises counts as one.
    """

    guarantee = Guarantee.EXACTLY_ONCE
    can: ClassVar[frozenset[str]] = frozenset({"replace"})
    table: ClassVar[Literal["beside", "within"]]
    """Whether it lies in the folder of the output, and names only files there."""
    options: TableOptions

    @abstractmethod
    async def open(self, schema: pa.Schema | None, home: TableHome) -> None:
        """Connect; create the table, or check it and add the columns that it lacks.

        Args:
            schema: of the rows, with `_sequence`, to which the column `partition` is added; None: nothing is created or
                changed, as an operator's command opens it.

        Raises:
            SinkRefused: the table cannot have these columns.
        """

    async def check(self, schema: pa.Schema | None, home: TableHome) -> None:
        """Try all that `open` needs, and change nothing: `actorproc doctor` calls it on a table that is not open. By
        default the table is opened as an operator's command opens it, and loaded.

        Args:
            schema: as for `open`; None: the processor has never run, so columns are not tried.

        Raises:
            SinkRefused: the table cannot have these columns, or the catalog refuses.
        """
        await self.open(None, home)
        await self.load()

    @abstractmethod
    async def load(self) -> TableSnapshot:
        """The newest version: counters and files of one moment."""

    @abstractmethod
    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        """Make one transaction, if the count is still that of `seen` and each removed file is still there.

        Nothing repeats it: neither this method nor a library (rule `count`). Where the outcome is unknown and cannot be
        settled, raise any other error; the committer loads again.

        Raises:
            SinkMoved: another transaction of ours has landed, or a file to remove is not there.
        """

    @abstractmethod
    async def named_since(self, age: float) -> set[str]:
        """Keys of all files that a version of the last `age` seconds names, the newest one included.

        A reader may hold such a version, so these files are not deleted (rule `named`).
        """

    async def read_elsewhere(self, name: str) -> bytes | None:
        """A file that the table names, and that is not in the container; None: it cannot be read."""
        return None

    def describe(self, footer: pq.FileMetaData) -> Any:
        """What `AddedFile.note` is to be of a file with this footer. Not on the event loop. By default None."""
        return None
