"""Whose file a table names, by its path. A table may be shared: rows of others stay, whatever we make of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from actorproc.sinks.protocol import SinkRefused
from actorproc.sinks.tables.protocol import NamedFiles, OtherFile

Choice = Literal["refuse", "keep", "remove"]
"""What to do, as a table is made anew, with files of which nobody can tell whose rows they have."""


def leaving(files: NamedFiles, partition: str, *, first: bool, choice: Choice) -> Mapping[str, OtherFile]:
    """The files beside the commits that leave a partition of a table that is made anew, by name.

    Args:
        first: the table has never had a transaction of this processor, so nobody can have rewritten its rows there.

    Raises:
        SinkRefused: files may have rows of the output that somebody has rewritten, or rows of others.
    """
    others = files.others_of(partition)
    unclear = sorted(name for name, other in others.items() if other.whose != "ours")
    if unclear and not first and choice == "refuse":
        raise SinkRefused(
            f"the table names files in partition {partition} that are not in the folder of this processor, such as "
            f"{unclear[0]}. They may have rows of the output that somebody has rewritten, or rows of others, so the "
            "table is not made anew. `actorproc sinks repair` with `--others remove` removes them, and with `--others "
            "keep` leaves them in the table"
        )
    if choice == "remove" and not first:
        return others
    return {name: other for name, other in others.items() if other.whose == "ours"}
