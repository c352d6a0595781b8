"""Offsets of a stream in Spark's checkpoint: the dataset, and the number to read next of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from actorproc.errors import UsageError

_VERSION = 1


def dataset_title(kind: str, path: str, url: str) -> str:
    """A dataset in the store at `url`, for messages and offsets."""
    return f"{kind} {path} at {url}" if path else f"{kind} at {url}"


def stream_identity(kind: str, identity: str | None, of: str) -> str:
    """Distinguishes datasets in offsets: by their identity, or else by their location."""
    return f"{kind}: {identity or of}"


@dataclass(frozen=True)
class Offset:
    """An offset.

    Attributes:
        of: title of the dataset.
        identity: distinguishes it from another dataset at the same location.
        next: number to read next, by partition.
    """

    of: str
    identity: str
    next: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {"version": _VERSION, "of": self.of, "identity": self.identity, "next": dict(self.next)}

    @classmethod
    def checked(cls, found: Mapping[str, Any], of: str, identity: str) -> Self:
        """Parse the offset in the checkpoint of a query that reads dataset `of` with this `identity`.

        Raises:
            UsageError: the checkpoint belongs to another dataset, or to another version of actorproc.
        """
        try:
            version, known = found["version"], cls(found["of"], found["identity"], dict(found["next"]))
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"the checkpoint holds {str(found)[:200]!r}, which is not an offset of actorproc: "
                "it belongs to another query. Give this one a checkpointLocation of its own"
            ) from None
        if version != _VERSION:
            raise UsageError(
                f"the checkpoint holds an offset of version {version!r}, this actorproc knows {_VERSION}: update it"
            )
        if known.identity != identity:
            again = f"{of} as it was before it was deleted and created again" if known.of == of else known.of
            raise UsageError(
                f"the checkpoint belongs to a query on {again}, and this query reads {of}: their numbers have nothing "
                "to do with each other. Give this query a checkpointLocation of its own, or the container and name it "
                "began with"
            )
        return known
