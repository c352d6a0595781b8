"""With any faults of the store: no two hosts rely on one lease, and no step is lost or repeated."""

from __future__ import annotations

from collections import Counter
from random import Random

import anyio
import pytest

from actorproc.simulation.faults import LATENCY_ONLY, Faults
from actorproc.simulation.loop import run
from tests.group.simulated_group import Node, SimulatedGroup

# A host may crash between starting a task and its first step. That is no fault of the task.
pytestmark = pytest.mark.filterwarnings("ignore:.*was never awaited")


@pytest.mark.parametrize("seed", range(5))
def test_lost_replies_neither_lose_nor_repeat_a_step(seed: int) -> None:
    async def main() -> None:
        faults = Faults(slow=0, lost_request=0, lost_reply=0.5, late_write=0, busy=0, silence=(1, 3))
        fleet = SimulatedGroup(12, faults=faults, seed=seed)
        nodes = {name: fleet.start(name) for name in "abcd"}
        await fleet.until_even(*"abcd", within=300)
        await nodes["c"].stop()
        await fleet.until_even(*"abd", within=300)
        await anyio.sleep(300)
        fleet.start("e")
        await fleet.until_even(*"abde", within=300)
        assert fleet.backend.injected["lost_reply"] > 50
        fleet.check_steps()

    run(main(), seed=seed)


@pytest.mark.parametrize("seed", range(12))
def test_no_two_hosts_rely_on_the_same_lease_under_any_faults(seed: int) -> None:
    """No host takes a lease on which a dead host still relies. Owners stop their partition before they hand it over."""

    async def main() -> None:
        random = Random(seed)
        fleet = SimulatedGroup(16, faults=Faults(), seed=seed, max_handoff_time=3_000)
        for name in "abcde":
            fleet.start(name, rate=random.uniform(0.98, 1.02), offset=random.uniform(-300, 300))
        alive = dict(fleet.nodes)

        over = anyio.Event()

        async def trouble() -> None:
            for number in range(10):
                await anyio.sleep(random.uniform(20, 120))
                label = random.choice(sorted(alive))
                node: Node = alive[label]
                match random.choice(["pause", "crash", "cut", "outage"]):
                    case "pause":
                        node.host.pause()
                        await anyio.sleep(random.uniform(2, 200))
                        node.host.resume()
                    case "crash":
                        node.host.crash()
                        del alive[label]
                        await anyio.sleep(random.uniform(0, 100))
                        again = f"{node.label} {number}"
                        alive[again] = fleet.start(again, rate=random.uniform(0.98, 1.02))
                    case "cut":
                        node.store.backend.cut(random.uniform(2, 200))  # type: ignore[attr-defined]
                    case "outage":
                        fleet.backend.outage(random.uniform(2, 100))
            fleet.backend.heal()
            fleet.backend.faults = LATENCY_ONLY
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trouble)
            while not over.is_set():
                await anyio.sleep(0.25)
                held = Counter(p for node in alive.values() if node.host.running for p in node.holds())
                assert not {p: n for p, n in held.items() if n > 1}
        await fleet.until_even(*alive, within=200)
        fleet.check_steps()

    run(main(), seed=seed)
