"""`IcebergSink`: the output as a table of an Iceberg catalog. Nothing is written twice: it names the output's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate, SetPropertiesUpdate
from pyiceberg.typedef import Record

from actorproc.config.options import parse_options
from actorproc.connectors.iceberg.catalog import (
    PARTITION,
    check_layout,
    check_table,
    open_catalog,
    open_table,
    refused_for_good,
)
from actorproc.connectors.iceberg.options import IcebergOptions
from actorproc.connectors.iceberg.refs import names_as_seen
from actorproc.connectors.iceberg.snapshots import FileChange, data_file
from actorproc.connectors.iceberg.versions import Manifests, expired, held, was_set_back
from actorproc.sinks.protocol import SinkError, SinkMoved, SinkPlace, SinkRefused
from actorproc.sinks.tables.protocol import (
    AddedFile,
    NamedFiles,
    Place,
    RemovedFile,
    TableChange,
    TableHome,
    TableSink,
    TableSnapshot,
    named_file,
)

_Named = Mapping[str, str | None]
"""Paths of files, with their partitions. None: it has none."""


@dataclass(frozen=True, slots=True)
class _Seen(TableSnapshot):
    """A snapshot with what its change needs."""

    table: Table | None = None
    manifests: Sequence[ManifestFile] = ()
    paths: Mapping[str, _Named] = field(default_factory=dict)
    """Of files, by the path of the manifest that names them."""


class IcebergSink(TableSink):
    """`iceberg:URI#NAMESPACE.TABLE`, where URI is that of a catalog of pyiceberg: `http...`, `sqlite:...`,
    `postgresql+psycopg:...`, or `glue`. The table may also be an option.
    """

    table: ClassVar[Literal["beside", "within"]] = "beside"
    options: IcebergOptions

    def __init__(self, url: str, given: Mapping[str, Any], place: SinkPlace) -> None:
        self.options = parse_options(url, IcebergOptions, given, of="sink")
        self._uri, _, named = url.partition(":")[2].partition("#")
        name = self.options.table or named or place.processor
        self._identifier = tuple(name.split(".") if "." in name else ("default", name))
        self.url = f"iceberg:{self._uri}#{'.'.join(self._identifier)}"
        self._clock = place.clock
        self._catalog: Catalog | None = None
        self._paths: dict[str, _Named] = {}  # of files, by the path of a manifest: manifests never change
        self._manifests = Manifests()

    async def open(self, schema: pa.Schema | None, home: TableHome) -> None:
        """See `TableSink.open`."""
        self._home = home
        self._root = f"{home.store.url.rstrip('/')}/"
        if self._root.startswith("memory:"):
            raise SinkRefused("a container in memory cannot be the files of an Iceberg table")
        identity = hashlib.sha256(home.identity.encode()).hexdigest()[:16]
        self._property = f"actorproc.{home.layout.processor}.{identity}"
        self._latest = await self._in_thread(self._open, schema)

    def _open(self, schema: pa.Schema | None) -> Table:
        with refused_for_good():
            self._catalog = self._catalog or open_catalog(self._uri, self.options)
            return open_table(self._catalog, self._identifier, schema, self.options.location)

    async def check(self, schema: pa.Schema | None, home: TableHome) -> None:
        """See `TableSink.check`."""
        await self._in_thread(self._check, schema)

    def _check(self, schema: pa.Schema | None) -> None:
        with refused_for_good():
            self._catalog = self._catalog or open_catalog(self._uri, self.options)
            check_table(self._catalog, self._identifier, schema)

    async def load(self) -> TableSnapshot:
        """See `TableSink.load`."""
        found: TableSnapshot = await self._in_thread(self._load)
        return found

    def _load(self) -> TableSnapshot:
        if self._catalog is None:
            raise RuntimeError("not opened")
        table = self._latest = self._catalog.load_table(self._identifier)
        check_layout(table)
        snapshot = table.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        kept = json.loads(table.properties.get(self._property, "{}"))
        places = {partition: Place(*place) for partition, place in kept.get("places", {}).items()}
        version = 0 if snapshot is None else snapshot.snapshot_id
        files = self._files(table, manifests)
        ours = kept.get("snapshot")
        set_back = was_set_back(table.metadata, None if ours is None else tuple(ours))
        return _Seen(
            kept.get("count", 0), kept.get("life", 0), places, files, version, set_back, table, manifests, self._paths
        )

    def _files(self, table: Table, manifests: Sequence[ManifestFile]) -> NamedFiles:
        # Deletes of rows that others have made say nothing of our files.
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        self._paths = {manifest.manifest_path: self._named_in(table, manifest) for manifest in data}
        files = NamedFiles(self._home.layout)
        for paths in self._paths.values():
            for path, partition in paths.items():
                files.add(self._key(path), path, partition)
        return files

    def _named_in(self, table: Table, manifest: ManifestFile) -> _Named:
        known = self._paths.get(manifest.manifest_path)
        if known is not None:
            return known
        is_ours = [field.name for field in table.specs()[manifest.partition_spec_id].fields] == [PARTITION.name]
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        return {e.data_file.file_path: e.data_file.partition[0] if is_ours else None for e in entries}

    async def named_since(self, age: float) -> set[str]:
        """See `TableSink.named_since`."""
        found: set[str] = await self._in_thread(self._named_since, age)
        return found

    def _named_since(self, age: float) -> set[str]:
        if self._catalog is None:
            raise RuntimeError("not opened")
        table = self._catalog.load_table(self._identifier)
        snapshots = held(table.metadata, self._home.store.time.now() - age)
        manifests = {manifest for snapshot in snapshots for manifest in snapshot.manifests(table.io)}
        keys = {self._key(path) for manifest in manifests for path in self._named_in(table, manifest)}
        return {key for key in keys if key is not None}

    def _key(self, path: str) -> str | None:
        return path.removeprefix(self._root) if path.startswith(self._root) else None

    async def commit(self, seen: TableSnapshot, change: TableChange) -> None:
        """See `TableSink.commit`."""
        if not isinstance(seen, _Seen):
            raise TypeError(f"{seen!r} is not of this table")
        await self._in_thread(self._commit, seen, change)

    def _commit(self, seen: _Seen, change: TableChange) -> None:
        if seen.table is None or self._catalog is None:
            raise RuntimeError("not opened")
        anew = bool(seen.life) and change.life != seen.life
        manifests = self._manifests_after(seen, change) if anew else seen.manifests
        if change.removes and not anew and any(map(_deletes_rows, seen.manifests)):
            raise SinkRefused(
                f"others have deleted rows of table {'.'.join(self._identifier)} by delete files (merge-on-read). They "
                "do not apply to compacted files: the rows would come back. `actorproc sinks repair` makes the table "
                "what the output has; then delete with write.delete.mode = copy-on-write"
            )
        transaction = Transaction(seen.table)
        time = max(int(self._home.store.time.now() * 1000), seen.table.metadata.last_updated_ms)
        for operation, adds, removes in _snapshots(self._home, change):
            made = FileChange(
                operation,
                transaction,
                manifests,
                self._gone(seen, removes),
                [self._data_file(seen.table, f) for f in adds],
            )
            snapshot = made.stage(time)
            manifests = snapshot.manifests(seen.table.io)
        places = {**seen.places, **change.places} if change.life == seen.life else change.places
        kept = {
            "count": seen.count + 1, "life": change.life, "places": places,
            "snapshot": (snapshot.snapshot_id, snapshot.sequence_number),
        }  # fmt: skip
        updates = [*transaction._updates, SetPropertiesUpdate(updates={self._property: json.dumps(kept)})]
        if gone := expired(seen.table.metadata, self._home.store.time.now() - self.options.versions):
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=gone))
        # Not `commit_transaction`: it tries again on top of what others have committed meanwhile, as the table's
        # properties say (rule `count`). The condition is that the snapshot is still the one that was loaded.
        try:
            requirements = (*transaction._requirements, AssertTableUUID(uuid=seen.table.metadata.table_uuid))
            if gone:  # nobody may give them a name meanwhile
                requirements += names_as_seen(self._catalog, self._identifier, seen.table.metadata)
            done = self._catalog.commit_table(seen.table, requirements, tuple(updates))
        except CommitFailedException as error:
            raise SinkMoved(f"table {'.'.join(self._identifier)}: {error}") from error
        with suppress(Exception):
            self._catalog._delete_old_metadata(seen.table.io, seen.table.metadata, done.metadata)
        if gone:
            self._manifests.delete(seen.table.io, seen.table.metadata.snapshots, gone)

    def _manifests_after(self, seen: _Seen, change: TableChange) -> Sequence[ManifestFile]:
        """Of a table that is made anew: without delete files, so it has the rows again that others have deleted.

        Raises:
            SinkRefused: the delete files may be of rows of others, which stay deleted.
        """
        stay = seen.files.others.keys() - {file.key for file in change.removes}
        if stay and any(map(_deletes_rows, seen.manifests)):
            raise SinkRefused(
                f"table {'.'.join(self._identifier)} has rows of others, such as in {min(stay)}, and delete files, "
                "which may be of these rows or of ours: rewrite the data files with deletes first, as Spark's "
                "rewrite_data_files does"
            )
        return [manifest for manifest in seen.manifests if manifest.content == ManifestContent.DATA]

    def _gone(self, seen: _Seen, removes: Sequence[RemovedFile]) -> dict[str, set[str]]:
        """Paths of the files to remove, by manifest.

        Raises:
            SinkMoved: the table does not name one.
        """
        others = seen.files.others  # under any spelling, also `file:/...`
        wanted = {file.key if file.key in others else f"{self._root}{file.key}" for file in removes}
        found = {manifest: wanted.intersection(paths) for manifest, paths in seen.paths.items()}
        if missing := wanted.difference(*found.values()):
            raise SinkMoved(f"the table does not name {min(missing)}, which is to be removed")
        return {manifest: paths for manifest, paths in found.items() if paths}

    def _data_file(self, table: Table, file: AddedFile) -> DataFile:
        partition, spec = Record(file.partition), table.spec()
        return data_file(f"{self._root}{file.key}", file.size, partition, spec.spec_id, file.note)

    async def read_elsewhere(self, name: str) -> bytes | None:
        """See `TableSink.read_elsewhere`."""
        found: bytes | None = await self._in_thread(self._read_elsewhere, name)
        return found

    def _read_elsewhere(self, name: str) -> bytes | None:
        with suppress(OSError), self._latest.io.new_input(name).open() as file:
            return bytes(file.read())
        return None

    def describe(self, footer: pq.FileMetaData) -> Any:
        """See `TableSink.describe`: the statistics of the file.

        Raises:
            SinkError: it has a column that the table does not have. pyiceberg could not read the table with it.
        """
        schema = self._latest.schema()
        known = parquet_path_to_id_mapping(schema)
        if unknown := [path for path in _paths(footer) if path not in known]:
            raise SinkError(
                f"a file has the column {unknown[0]}, which the table does not have yet. A host with the later version "
                "of the handler adds it"
            )
        statistics = data_file_statistics_from_parquet_metadata(
            footer, compute_statistics_plan(schema, self._latest.properties), known
        )
        return statistics.to_serialized_dict()

    async def close(self) -> None:
        """See `TableSink.close`."""
        if self._catalog is not None:
            await self._in_thread(self._catalog.close)

    async def _in_thread(self, work: Any, *args: Any) -> Any:
        with anyio.CancelScope(shield=True):  # a thread cannot be stopped: what it does is waited for
            return await self._clock.run_in_thread(partial(work, *args))


def _paths(footer: pq.FileMetaData) -> list[str]:
    """Of the columns with values, such as `address.city`."""
    return [footer.schema.column(at).path for at in range(footer.num_columns)]


def _deletes_rows(manifest: ManifestFile) -> bool:
    return manifest.content != ManifestContent.DATA and (manifest.has_added_files() or manifest.has_existing_files())


_Snapshot = tuple[Operation, Sequence[AddedFile], Sequence[RemovedFile]]


def _snapshots(home: TableHome, change: TableChange) -> list[_Snapshot]:
    """The snapshots of one transaction, so that readers of changes get new rows once, as appends.

    First what replaces or removes files, then what is new. There is one at least: the condition of a transaction is
    the snapshot before it.
    """
    whole = [file for file in change.adds if file.new_rows and not _is_original(home, file)]
    if whole:  # a file with rows that are there and others, or a copy without rows
        return [(Operation.OVERWRITE, change.adds, change.removes)]
    old = [file for file in change.adds if not file.new_rows]
    new = [file for file in change.adds if file.new_rows]
    found = list[_Snapshot]()
    if old or change.removes:
        kind = Operation.REPLACE if old else Operation.DELETE
        if old and any(file.rows_go for file in change.removes):
            kind = Operation.OVERWRITE
        found.append((kind, old, change.removes))
    if new or not found:
        found.append((Operation.APPEND, new, ()))
    return found


def _is_original(home: TableHome, file: AddedFile) -> bool:
    named = named_file(home.layout, file.key)
    return named is not None and not named.compacted
