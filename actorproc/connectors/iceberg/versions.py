"""Versions of a table, which are its snapshots: who may read them, whether one was set back, which ones leave it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

logging.getLogger("pyiceberg.catalog").setLevel(logging.ERROR)  # a line for each old metadata file that is gone

_EXPIRED_AT_ONCE = 100
"""Snapshots that a transaction removes: a table that was left alone for long gets rid of them by and by."""


def held(metadata: TableMetadata, since: float) -> list[Snapshot]:
    """The snapshots that a reader may hold: those that were the newest one since that time, and those with a name.

    Args:
        since: in seconds since 1970.
    """
    older, newer = _parted(metadata, since)
    # Somebody may have set the table back to an old one, for a while.
    log = sorted(metadata.snapshot_log, key=lambda entry: entry.timestamp_ms)
    before = [entry for entry in log if entry.timestamp_ms < since * 1000]
    current = {entry.snapshot_id for entry in (*before[-1:], *log[len(before) :])}
    wanted = {*current, *_named(metadata), *(snapshot.snapshot_id for snapshot in (*older[-1:], *newer))}
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in wanted]


def expired(metadata: TableMetadata, since: float) -> list[int]:
    """Snapshots that nobody reads any more, and that no branch or tag names."""
    older, _ = _parted(metadata, since)
    kept = _named(metadata)
    found = [snapshot.snapshot_id for snapshot in older[:-1] if snapshot.snapshot_id not in kept]
    return found[:_EXPIRED_AT_ONCE]


def _named(metadata: TableMetadata) -> set[int]:
    return {ref.snapshot_id for ref in metadata.refs.values()}


def _parted(metadata: TableMetadata, since: float) -> tuple[list[Snapshot], list[Snapshot]]:
    """Snapshots by age: those from before that time, of which the last one was still read when it began, and others."""
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.sequence_number or 0))
    older = [snapshot for snapshot in snapshots if snapshot.timestamp_ms < since * 1000]
    return older, snapshots[len(older) :]


def was_set_back(metadata: TableMetadata, ours: tuple[int, int] | None) -> bool:
    """Whether the newest snapshot is without one that it should come after.

    Expiry may have removed what lies between them: then the sequence numbers alone say it.

    Args:
        ours: id and sequence number of the snapshot of our latest transaction; None: not known.
    """
    if ours is None:
        return False
    ours_id, ours_number = ours
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    found = metadata.current_snapshot()
    while found is not None and found.snapshot_id != ours_id:
        if (found.sequence_number or 0) <= ours_number:
            return True
        found = by_id.get(found.parent_snapshot_id) if found.parent_snapshot_id is not None else None
    return metadata.current_snapshot() is None


class Manifests:
    """Which manifests each snapshot has, so that those of snapshots that are gone can be deleted.

    Nobody else does: engines clean no table up whose files they must not delete.
    """

    def __init__(self) -> None:
        self._of: dict[int, frozenset[str]] = {}

    def delete(self, io: FileIO, before: Sequence[Snapshot], gone: Collection[int]) -> None:
        """Delete the metadata of snapshots that have left the table, as far as no other one has it. Errors are ignored:
        what stays costs little.

        Args:
            before: the snapshots of the table before.
            gone: ids of those that have left it.
        """
        ours = {snapshot.snapshot_id: snapshot for snapshot in before}
        with suppress(Exception):
            kept = self._paths(io, [ours[number] for number in ours if number not in gone])
            left = [ours[number] for number in gone]
            unused = self._paths(io, left) - kept
            for path in (*unused, *(snapshot.manifest_list for snapshot in left)):
                with suppress(OSError):
                    io.delete(path)
        self._of = {number: paths for number, paths in self._of.items() if number in ours and number not in gone}

    def _paths(self, io: FileIO, snapshots: Iterable[Snapshot]) -> set[str]:
        found: set[str] = set()
        for snapshot in snapshots:
            if (paths := self._of.get(snapshot.snapshot_id)) is None:
                paths = frozenset(manifest.manifest_path for manifest in snapshot.manifests(io))
                self._of[snapshot.snapshot_id] = paths
            found |= paths
        return found
