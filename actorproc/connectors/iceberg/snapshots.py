"""Snapshots of a table: one producer that adds and removes files, and merges manifests as they get many.

pyiceberg has producers for appends and overwrites. Neither can say that rows stay the same (`replace`), which readers
of changes need to know of a compaction. Its overwrite reads each manifest, and takes a predicate of all partitions; its
append cannot remove. It deletes the metadata of a commit that was refused, though a refusal may be the answer to
one's own commit that was sent twice. Hence this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT

_MERGED_AT = 50
"""Manifests of a snapshot that are merged: each load of the table by others reads all of them."""

_MANIFEST_BYTES = 8 * 2**20  # as Iceberg's default


class FileChange(_SnapshotProducer["FileChange"]):
    """Adds and removes files in one snapshot.

    Args:
        manifests: of the snapshot before.
        gone: paths of the files to remove, by the path of the manifest that names them.
    """

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        manifests: Sequence[ManifestFile],
        gone: Mapping[str, Set[str]],
        adds: Sequence[DataFile],
    ) -> None:
        super().__init__(operation, transaction, transaction._table.io)
        self._manifests_before, self._gone = manifests, gone
        self._kept: dict[str, list[ManifestEntry]] = {}  # by path of a manifest that is rewritten
        self._deleted = list[ManifestEntry]()
        for manifest in manifests:
            if paths := gone.get(manifest.manifest_path):
                self._split(manifest, paths)
        for file in adds:
            self.append_data_file(file)

    def _split(self, manifest: ManifestFile, paths: Set[str]) -> None:
        kept = self._kept.setdefault(manifest.manifest_path, [])
        for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
            if entry.data_file.file_path in paths:
                self.delete_data_file(entry.data_file)
                self._deleted.append(self._entry(entry, ManifestEntryStatus.DELETED))
            else:
                kept.append(self._entry(entry, ManifestEntryStatus.EXISTING))

    def _entry(self, entry: ManifestEntry, status: ManifestEntryStatus) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self._snapshot_id if status is ManifestEntryStatus.DELETED else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _build_delete_files_partition_predicate(self) -> None:
        """The manifests with the files to remove are known."""

    def _deleted_entries(self) -> list[ManifestEntry]:
        return self._deleted

    def _existing_manifests(self) -> list[ManifestFile]:
        found = []
        for manifest in self._manifests_before:
            kept = self._kept.get(manifest.manifest_path)
            if kept is None:
                if manifest.has_added_files() or manifest.has_existing_files():
                    found.append(manifest)
            elif kept:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in kept:
                        writer.add_entry(entry)
                found.append(writer.to_manifest_file())
        return found

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        others = [manifest for manifest in manifests if manifest.content != ManifestContent.DATA]
        merger: _ManifestMergeManager[FileChange] = _ManifestMergeManager(
            target_size_bytes=_MANIFEST_BYTES, min_count_to_merge=_MERGED_AT, merge_enabled=True, snapshot_producer=self
        )
        return merger.merge_manifests(data) + others

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        if self._operation is not Operation.REPLACE:
            return super()._summary(snapshot_properties)
        self._operation = Operation.OVERWRITE  # pyiceberg adds up the totals of others only
        try:
            summary = super()._summary(snapshot_properties)
        finally:
            self._operation = Operation.REPLACE
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)

    def _clean_all_uncommitted(self) -> None:
        """A refusal is no proof that the commit was not applied."""

    def stage(self, time: int) -> Snapshot:
        """Make the snapshot a part of the transaction. Writes its manifests.

        Args:
            time: of the snapshot, in milliseconds since 1970, by the clock of the store: those of hosts differ.
        """
        (add, *more), requirements = self._commit()
        if not isinstance(add, AddSnapshotUpdate):
            raise TypeError(f"{add!r} adds no snapshot")
        snapshot = add.snapshot.model_copy(update={"timestamp_ms": time})
        self._transaction._stage((AddSnapshotUpdate(snapshot=snapshot), *more), requirements)
        return snapshot


def data_file(path: str, size: int, partition: Any, spec_id: int, statistics: Mapping[str, Any]) -> DataFile:
    """A Parquet file as a manifest names it."""
    from pyiceberg.manifest import DataFileContent, FileFormat

    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=partition,
        file_size_in_bytes=size, sort_order_id=None, spec_id=spec_id, equality_ids=None, key_metadata=None,
        **statistics,
    )  # fmt: skip
