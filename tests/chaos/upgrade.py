"""A rolling upgrade during a run: hosts of the earlier version are replaced, one after the other, by hosts of this one.

No earlier version exists as code yet. Its hosts are this version's without the newest format version: they announce
that, and refuse documents of the newest format. Its handler has one column less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from actorproc.group.format_versions import FORMAT_VERSIONS
from actorproc.group.membership import read_group
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.chaos import programs
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.place import Place
from tests.chaos.verdict import Verdict
from tests.chaos.workload import ChaosHandler, GrownHandler

BEGINS = 0.3
"""Share of the storm after which the upgrade begins."""


class EarlierHost(Child):
    """A host of the earlier version. It is refused once there are later ones: it was paused at its start, say."""

    def why_unexpected(self, code: int) -> str | None:
        if code == 2 and self.was_refused:
            return None
        return super().why_unexpected(code)

    @property
    def was_refused(self) -> bool:
        """Whether it may not run any more."""
        return "install a later version on this host" in self.text or "twice" in self.text


class Release(NamedTuple):
    """A version of the hosts."""

    program: Callable[..., None]
    kind: type[Child]
    handler: type[ChaosHandler]


EARLIER = Release(programs.earlier_host, EarlierHost, ChaosHandler)
LATER = Release(programs.host, Child, GrownHandler)


class Upgrade:
    """Chooses the version of each host that is started, and stops those of the earlier version in turn.

    Args:
        hosts: number of hosts of the fleet.
        seconds: of the storm.
    """

    def __init__(
        self, fleet: Fleet, place: Place, processor: str, hosts: int, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._fleet, self._place, self._layout, self._say = fleet, place, ProcessorLayout(processor), say
        self._begins = self._next = time.monotonic() + BEGINS * seconds
        self._pause = (1 - BEGINS) / 2 * seconds / hosts
        self._replaced = 0
        self._writes: int | None = None

    def release(self) -> Release:
        """The version of a host that is started now."""
        return EARLIER if time.monotonic() < self._begins else LATER

    def tick(self, *, storm: bool) -> None:
        """Replace a host if it is time; after the storm all that are left."""
        up = [child for child in self._fleet.children if isinstance(child, EarlierHost) and child.state is State.UP]
        if up and (not storm or time.monotonic() > self._next):
            self._next = time.monotonic() + self._pause
            self._say(f"upgrade {up[0].name}")
            self._replaced += 1
            up[0].stop()  # the storm, or the calm after it, starts the next host in its slot

    @property
    def is_calm(self) -> bool:
        return not any(isinstance(child, EarlierHost) for child in self._fleet.children)

    @property
    def had_enough(self) -> bool:
        return self._replaced > 0 and self.is_calm

    async def finish(self) -> None:
        """Read which format version the group writes in the end."""
        async with open_store(self._place.container, self._place.settings) as store:
            group = await read_group(store, self._layout)
        self._writes = None if group is None else group.writes

    def judge(self, verdict: Verdict) -> list[str]:
        """The fault: the group must write the newest format version in the end."""
        if self._writes == FORMAT_VERSIONS.highest:
            return []
        return [f"upgrade: the group writes format {self._writes} in the end, not {FORMAT_VERSIONS.highest}"]

    @property
    def line(self) -> str:
        return f"{self._replaced} hosts upgraded"

    @property
    def summary(self) -> str:
        earlier = sum(isinstance(child, EarlierHost) for child in self._fleet.ended)
        refused = sum(c.was_refused for c in self._fleet.ended if isinstance(c, EarlierHost))
        return (
            f"upgrade: {earlier} processes of the earlier version, {self._replaced} of them replaced while they ran, "
            f"{refused} refused afterwards; the group writes format {self._writes}"
        )
