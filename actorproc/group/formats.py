"""The storage formats of a group: hosts of two versions run in one group, and write a format that all of them read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

RELEASE = version("actorproc")
"""Of this actorproc. For people only: hosts compare formats."""

_IN_NAME = re.compile(r"-f(\d{1,9})-")


class Formats(NamedTuple):
    """The storage formats that one host understands.

    A document carries the lowest format whose readers understand it, as its `version`.
    """

    lowest: int
    """The lowest format in which this host can write everything that it has to write."""
    highest: int
    """The highest format that it reads."""

    def refusal(self, written: int, others: Mapping[str, str]) -> str | None:
        """Why a host with these formats may not join a group; None if it may.

        Args:
            written: the format that the group writes.
            others: host -> incarnation of the other members.
        """
        if written > self.highest:
            return (
                f"the group writes storage format {written}, and this actorproc ({RELEASE}) reads up to "
                f"{self.highest}: install a later release on this host"
            )
        behind = sorted(host for host, incarnation in others.items() if highest_of(incarnation) < self.lowest)
        if behind:
            return (
                f"this actorproc ({RELEASE}) writes storage format {self.lowest} or later, which these hosts cannot "
                f"read: {', '.join(behind)}. Update them first"
            )
        return None


FORMATS = Formats(lowest=1, highest=4)
"""Of this release. A change that earlier releases would misread raises `highest`; see CONTRIBUTING.md."""


def incarnation_name(nonce: str, formats: Formats, expiration: float) -> str:
    """Id of one life of a host: `1f0c...-f2-60s`. Each listing shows other hosts the facts in it."""
    return f"{nonce}-f{formats.highest}-{expiration:g}s"


def highest_of(incarnation: str) -> int:
    """The highest format that the incarnation reads; 1 if its name does not say."""
    found = _IN_NAME.search(incarnation)
    return int(found[1]) if found else 1


def agreed(written: int, incarnations: Iterable[str]) -> int:
    """The format that a group of these members writes from now on. `written`: the format until now."""
    return max(written, min(map(highest_of, incarnations), default=written))
