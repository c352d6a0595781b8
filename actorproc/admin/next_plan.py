"""What a host would change in the group next."""

from __future__ import annotations

from actorproc.group.assignment import Plan, plan
from actorproc.group.liveness import LivenessTracker
from actorproc.group.membership import GroupDocument, read_group
from actorproc.sources.protocol import Source, list_partitions
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store


async def next_plan(store: Store, layout: ProcessorLayout, *, expiration: float, source: Source | None = None) -> Plan:
    """The changes that a host would make if it looked at the group now for the first time, and why. Writes nothing.

    Hosts that have watched for longer know sooner that one of them is silent, and wait for `rebalance_delay` before
    they move live leases.
    """
    group = await read_group(store, layout) or GroupDocument.of()
    who = [(host, member.incarnation) for host, member in group.members.items()]
    watch = LivenessTracker(expiration)
    now = store.clock.monotonic()
    watch.observe(await store.list(layout.hosts), who, asked=now, answered=now)
    gone = {host: why for host, incarnation in who if (why := watch.why_dead((host, incarnation)))}
    return plan(
        group.members,
        group.leases,
        group.wishes,
        partitions=await list_partitions(source) if source is not None else {},
        joining=group.may_join(watch.joining(group.members)),
        gone=gone,
    )
