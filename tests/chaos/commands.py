"""Operators' command lines as processes of a run. They may be refused, and may be killed midway."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos import programs
from tests.chaos.fleet import Child, Fleet, State
from tests.chaos.place import Place


class Command(Child):
    """A command line. It may be refused: the host or partition that it names may be gone."""

    def why_unexpected(self, code: int) -> str | None:
        if (self.state is State.KILLED and code < 0) or (code in (0, 1, 2) and "Traceback" not in self.text):
            return None
        return f"{self.name} ended with {code}: {self.text[-600:]}"


def give(
    fleet: Fleet,
    place: Place,
    processor: str,
    name: str,
    arguments: Sequence[str],
    program: Callable[..., None] = programs.host,
) -> Command:
    """Start `actorproc` with these arguments, and those that name the processor, as process `name`."""
    more = ["--name", processor, "--container", place.container]
    child = fleet.start(0, name, program, place.folder, place.environment(), [*arguments, *more], kind=Command)
    assert isinstance(child, Command)
    return child
