"""The condition that no snapshot has got a name, of a tag or branch, since a table was loaded.

A transaction that drops a snapshot drops the names on it, too, and nobody would hear of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, ValidatableTableRequirement


class _AssertNames(ValidatableTableRequirement):
    """All names are those that were seen. No service knows this condition: only for catalogs that check it here."""

    type: Literal["actorproc-assert-names"] = "actorproc-assert-names"
    names: Mapping[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as pyiceberg's own
        """See `ValidatableTableRequirement.validate`."""
        if base_metadata is not None and _names(base_metadata) != self.names:
            raise CommitFailedException("Requirement failed: a tag or branch was made, moved or dropped meanwhile")


def names_as_seen(catalog: Catalog, identifier: tuple[str, ...], seen: TableMetadata) -> tuple[Any, ...]:
    """Requirements of a commit that drops snapshots: tags and branches are as in `seen`.

    Catalogs of a database, and Glue, check requirements in this process, against metadata that they swap only if it is
    still the newest. A REST service checks them itself, and knows none of new names: they are looked up now.

    Raises:
        CommitFailedException: they are not.
    """
    names = _names(seen)
    whole = _AssertNames(names=names)
    if isinstance(catalog, MetastoreCatalog):
        return (whole,)
    whole.validate(catalog.load_table(identifier).metadata)
    return tuple(AssertRefSnapshotId(ref=name, snapshot_id=number) for name, number in names.items())


def _names(metadata: TableMetadata) -> dict[str, int]:
    """Of the snapshots, without the main branch: each transaction moves it."""
    return {name: ref.snapshot_id for name, ref in metadata.refs.items() if name != MAIN_BRANCH}
