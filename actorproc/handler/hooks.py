"""`Hooks`: callbacks of an application for events of the partitions of a host."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Literal

from actorproc.errors import Fault

EventKind = Literal[
    "acquired", "taken_over", "released", "caught_up", "committed",
    "dead_letters", "user_error", "infrastructure_error", "stuck", "delivered", "sink_failed",
]  # fmt: skip
"""Each is the name of the method of `Hooks` that is called."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened on a host. Fields that the kind of event does not fill have their defaults."""

    kind: EventKind
    processor: str
    host: str
    time: float
    """Seconds since 1970, by the host's clock."""
    partition: str | None = None
    """None: the event is about the whole host, for example a heartbeat that the store did not take."""
    epoch: int = 0
    reason: str = ""
    """Why, in words. For `released` one of: handed over, ended, lost, fenced."""
    error: Exception | None = None
    fault: Fault | None = None
    """Of the error: "user" (handler, options, schema) or "infrastructure" (source, store, network)."""
    position: str = ""
    """Committed position; for `caught_up` the position that is reached, whose commit may follow."""
    sequence: int = -1
    """Sequence of the last record before `position`."""
    rows: int = 0
    """Output rows of this commit, or of this delivery."""
    dead_letters: int = 0
    """Dead letters of this commit."""
    sink: str = ""
    """Its name."""
    commits: int = 0
    """Commits of this delivery."""
    upto: int = -1
    """Number of the last commit of this delivery."""


class Hooks:
    """Subclass it and override the methods you need, each as `async def` or as plain `def`.

    Methods get one event at a time, in the order in which things happened on this host. They run beside the partitions:
    an error is logged, and neither an error nor a slow method delays a commit or a heartbeat. A plain method runs in a
    thread. Up to `hook_queue` events wait for a slow method. Later ones are dropped; a log event counts them.
    A host that dies calls nothing, so the hooks of its events are lost: count in the output, not in hooks.
    """

    def acquired(self, event: Event) -> Awaitable[None] | None:
        """This host got the lease of a partition. `reason` says why."""
        return None

    def taken_over(self, event: Event) -> Awaitable[None] | None:
        """The lease that was just acquired belonged to a host that is no longer in the group."""
        return None

    def released(self, event: Event) -> Awaitable[None] | None:
        """This host has the lease no more, or may not use it. `reason` says why."""
        return None

    def caught_up(self, event: Event) -> Awaitable[None] | None:
        """Everything that the source had is processed, up to `position`, for the first time since the partition was
        opened here, or again after it was behind: after it had unprocessed records for at least `commit_interval`.
        """
        return None

    def committed(self, event: Event) -> Awaitable[None] | None:
        """Records up to `sequence` are committed, with `rows` and `dead_letters`."""
        return None

    def dead_letters(self, event: Event) -> Awaitable[None] | None:
        """A commit had dead letters. `reason` has the error of one of them. Called before `committed`."""
        return None

    def user_error(self, event: Event) -> Awaitable[None] | None:
        """The handler failed: at an attempt at a batch, which may be tried again, or so that the partition restarts."""
        return None

    def infrastructure_error(self, event: Event) -> Awaitable[None] | None:
        """Source or store failed, and the partition restarts; or, without a partition, the group cannot be reached."""
        return None

    def stuck(self, event: Event) -> Awaitable[None] | None:
        """A call of the handler or of the source does not end."""
        return None

    def delivered(self, event: Event) -> Awaitable[None] | None:
        """A sink has taken the rows of some commits. A row may have come before: see the guarantee of the sink."""
        return None

    def sink_failed(self, event: Event) -> Awaitable[None] | None:
        """A sink does not take the rows of a partition, or refuses them. Called once until it takes rows again, or the
        error changes. The partition goes on."""
        return None
