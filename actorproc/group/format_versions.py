"""The format versions of a group: hosts of two versions run in one group, and write documents that all of them read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

VERSION = version("actorproc")
"""The version of this actorproc. For people only: hosts compare format versions."""

_IN_NAME = re.compile(r"-f(\d{1,9})-")


class FormatVersions(NamedTuple):
    """The format versions that one host understands.

    A document carries the lowest format version whose readers understand it, as its `version`.
    """

    lowest: int
    """The lowest format version in which this host can write all of its documents."""
    highest: int
    """The highest format version that it reads."""

    def refusal(self, written: int, others: Mapping[str, str]) -> str | None:
        """Why a host with these format versions may not join a group; None if it may.

        Args:
            written: the format version that the group writes.
            others: host -> incarnation of the other members.
        """
        if written > self.highest:
            return (
                f"the group writes format version {written}, and this actorproc ({VERSION}) reads up to "
                f"{self.highest}: install a later version on this host"
            )
        behind = sorted(host for host, incarnation in others.items() if highest_of(incarnation) < self.lowest)
        if behind:
            return (
                f"this actorproc ({VERSION}) writes format version {self.lowest} or later, which these hosts cannot "
                f"read: {', '.join(behind)}. Update them first"
            )
        return None


FORMAT_VERSIONS = FormatVersions(lowest=1, highest=5)
"""Of this version. A change that earlier versions would misread raises `highest`; see CONTRIBUTING.md."""


def incarnation_name(nonce: str, format_versions: FormatVersions, expiration: float) -> str:
    """Id of one life of a host: `1f0c...-f2-60s`. Each listing shows other hosts the facts in it."""
    return f"{nonce}-f{format_versions.highest}-{expiration:g}s"


def highest_of(incarnation: str) -> int:
    """The highest format version that the incarnation reads; 1 if its name does not contain one."""
    found = _IN_NAME.search(incarnation)
    return int(found[1]) if found else 1


def agreed(written: int, incarnations: Iterable[str]) -> int:
    """The format version that a group of these members writes from now on. `written`: the one until now."""
    return max(written, min(map(highest_of, incarnations), default=written))
