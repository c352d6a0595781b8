"""The cluster in virtual time keeps the promises of the protocol, for random seeds and in single scenarios."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import orjson
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from actorproc.errors import SettingsError
from actorproc.handler import context
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.records import Batch
from actorproc.runtime.clock import SYSTEM
from actorproc.simulation import (
    LATENCY_ONLY,
    Cluster,
    Faults,
    InvariantViolation,
    RecordResult,
    SimulationError,
    UnsteadySource,
    current_loop,
    run,
)
from tests.simulation import __main__ as command
from tests.simulation.handler_styles import Loop
from tests.simulation.numbers import Numbers, judge_number, numbers, owners
from tests.simulation.reference_records import check_reference
from tests.simulation.scenario import STREAMS, simulate, stream_of
from tests.simulation.styles import STYLES

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize(
    ("seed", "style"),
    [pytest.param(n, style, marks=[pytest.mark.slow] if n % 3 else []) for n, style in enumerate(STYLES)],
)
def test_every_record_has_one_result_despite_faults(seed: int, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "PIECE", 5)  # batches are small here
    result = simulate(seed, hours=0.12)
    assert result.style == style
    assert result.seen["records"] > 300  # it was no empty play
    assert result.seen["dead_letters"] > 10
    assert result.seen["expired"] + result.seen["left"] > 0
    assert result.injected["crash"] + result.injected["pause"] > 0
    assert max(result.converged) < 240
    if result.stream == "log":
        assert result.seen["sent"] >= result.seen["acknowledged"] > 300
    if style.startswith("at most once"):
        assert 0 < result.seen["lost"] < result.seen["records"] / 4


def test_every_style_runs_with_every_kind_of_stream() -> None:
    played = {(seed % len(STYLES), stream_of(seed)) for seed in range(len(STREAMS) * len(STYLES))}
    assert len(played) == len(STREAMS) * len(STYLES)


@pytest.mark.slow
def test_a_seed_gives_the_same_run_again() -> None:
    first = simulate(11, hours=0.05)
    assert simulate(11, hours=0.05) == first
    assert simulate(12, hours=0.05).fingerprint != first.fingerprint


# Stories


@pytest.mark.slow
def test_hosts_of_two_releases_run_together_during_an_upgrade() -> None:
    result = simulate(6, hours=0.5, hosts=3, style="loop", stream="positions", operators=False)
    assert result.injected["upgrade"] > 1
    assert result.seen["formats"] == 1, "the last upgrade raised the format"
    assert result.injected["ended: VersionRefused"] > 0


def test_a_cluster_reads_neither_files_nor_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(PartitionHandler):
        class Options(BaseModel):
            factor: int

        output_schema = "n long"

        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            for record in batch:
                ctx.emit(record, {"n": record.json() * ctx.options.factor})

    def check(ended: RecordResult) -> str | None:
        return (
            None if [row["n"] for row in ended.rows] == [orjson.loads(ended.value) * 3] else "not three times as much"
        )

    async def story() -> None:
        with pytest.raises(SettingsError, match="factor: is missing"):
            Cluster(Scaled, numbers(2))
        cluster = Cluster(Scaled, numbers(2), check=check, options={"factor": 3})
        cluster.start("a")
        await cluster.converged(within=90)
        await cluster.finished()

    (tmp_path / "actorproc.toml").write_text("[options]\nfactor = 7\nother = 1\n")
    monkeypatch.chdir(tmp_path)
    run(story())


def test_a_cluster_without_faults_settles_at_once() -> None:
    async def story() -> None:
        cluster = Cluster(Numbers, numbers(10), check=judge_number)
        for name in "abc":
            cluster.start(name)
        assert await cluster.converged(within=90) < 30
        assert sorted(owners(cluster).values()) == [3, 3, 4]
        moves = cluster.seen()["moves"]
        await cluster.run_for(600)
        assert cluster.seen()["moves"] == moves, "an idle group moves nothing"
        await cluster.finished()
        assert cluster.seen()["rows"] == 500
        assert cluster.seen()["expired"] == 0

    run(story())


def test_a_crashed_host_is_removed_and_its_partitions_continue() -> None:
    async def story() -> None:
        source = numbers(6)
        cluster = Cluster(Numbers, source, check=judge_number)
        a, _ = cluster.start("a"), cluster.start("b")
        await cluster.converged(within=90)
        cluster.crash(a)
        for partition in range(6):
            source.append(str(partition), [b"7"])
        await cluster.run_for(55)
        assert owners(cluster) == {"a": 3, "b": 3}
        assert await cluster.converged(within=90) < 40
        assert owners(cluster) == {"b": 6}
        await cluster.finished()

    run(story())


def test_a_graceful_stop_leaves_no_gap() -> None:
    async def story() -> float:
        source = numbers(8)
        cluster = Cluster(Numbers, source, check=judge_number)
        a, _ = cluster.start("a"), cluster.start("b")
        await cluster.converged(within=90)
        cluster.ask_to_stop(a)
        asked = current_loop().now
        while owners(cluster) != {"b": 8}:
            await cluster.run_for(0.05)
        gap = current_loop().now - asked
        await cluster.converged(within=60)
        await cluster.finished()
        return gap

    assert run(story()) < 1.5


@pytest.mark.parametrize("after", [0.001, 0.1, 0.4])
def test_a_stop_that_comes_while_a_host_starts_is_not_forgotten(after: float) -> None:
    async def story() -> None:
        cluster = Cluster(Numbers, numbers(1), check=judge_number)
        a = cluster.start("a")
        await cluster.run_for(after)
        await cluster.stop(a, within=30)
        cluster.start("b")
        await cluster.converged(within=60)
        await cluster.finished()

    run(story())


@pytest.mark.slow
def test_moving_leases_repeat_no_record_and_keep_the_order() -> None:
    shown: dict[str, list[int]] = {}

    class Notes(Numbers):
        def process(self, batch: Batch, ctx: PartitionContext) -> None:
            shown.setdefault(ctx.partition, []).extend(batch.sequences)
            super().process(batch, ctx)

    async def story() -> None:
        source = numbers(8)
        cluster = Cluster(Notes, source, check=judge_number)

        async def flow() -> None:
            for n in range(700):
                source.append(str(n % 8), [b"%d" % n])
                await cluster.run_for(0.2)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flow)
            a, b = cluster.start("a"), cluster.start("b")
            await cluster.run_for(60)
            cluster.start("c")
            await cluster.run_for(30)
            assert sorted(owners(cluster).values()) == [2, 3, 3]
            await cluster.stop(b)
            await cluster.run_for(30)
            cluster.start("d")
            await cluster.stop(a)
        await cluster.converged(within=90)
        await cluster.finished()
        assert cluster.seen()["moves"] > 8

    run(story())
    assert len(shown) == 8
    for sequences in shown.values():
        assert sequences == sorted(set(sequences)), "again, or out of order"


def test_a_handoff_pauses_only_the_partitions_that_move() -> None:
    """Eight busy partitions, a second a batch. One of those that move runs a batch of 20 s as it is to move."""
    batches: dict[str, list[tuple[str, float, float]]] = {str(partition): [] for partition in range(8)}

    class Busy(Numbers):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:  # type: ignore[override]
            begun = current_loop().now
            await SYSTEM.sleep(20 if ctx.partition == "7" else 1)
            ctx.emit_each(batch, [{"n": record.json()} for record in batch])
            batches[ctx.partition].append((ctx.host, begun, current_loop().now))

    async def story() -> tuple[float, float]:
        source = UnsteadySource(8, page=10)
        cluster = Cluster(Busy, source, check=judge_number)
        for partition in batches:
            source.append(partition, [b"%d" % n for n in range(50 if partition == "7" else 1_000)])
        cluster.start("a")
        await cluster.run_for(40)
        cluster.start("b")
        while not any(lease.next for lease in cluster.group.document.leases.values()):
            await cluster.run_for(0.01)
        marked = current_loop().now
        await cluster.run_for(40)
        assert owners(cluster) == {"a": 4, "b": 4}
        until = current_loop().now
        await cluster.converged(within=240)
        await cluster.finished()
        return marked, until

    def pauses(partition: str, since: float, until: float) -> list[float]:
        """Seconds between batches, one after the other."""
        return [begun - ended for (_, _, ended), (_, begun, _) in pairwise(batches[partition]) if since < begun < until]

    marked, until = run(story())
    moved = {partition for partition, done in batches.items() if {host for host, _, _ in done} == {"a", "b"}}
    assert len(moved) == 4
    assert "7" in moved
    for partition in batches.keys() - moved:
        usual = max(pauses(partition, 0, marked))
        assert max(pauses(partition, marked, until)) < usual + 0.1, "it stays, and does not wait"
    hears = 4 * Faults().latency[1]  # who is to drain: the write's answer, a nudge, a look in two requests
    for partition in moved:
        drained = max(ended for host, _, ended in batches[partition] if host == "a")
        begun = min(begun for host, begun, _ in batches[partition] if host == "b")
        assert drained < marked + hears + (20 if partition == "7" else 1), "only the batch in hand is finished"
        assert begun < drained + 1.0, "nor does it wait for others to drain"


def test_a_host_that_was_paused_for_long_gets_its_share_again() -> None:
    async def story() -> None:
        cluster = Cluster(Loop, UnsteadySource(6), check=check_reference)
        a, _ = cluster.start("a"), cluster.start("b")
        await cluster.converged(within=90)
        cluster.pause(a)
        await cluster.run_for(100)
        assert owners(cluster) == {"b": 6}
        cluster.resume(a)
        await cluster.converged(within=120)
        assert owners(cluster) == {"a": 3, "b": 3}
        await cluster.finished()

    run(story())


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_renews_again_starts_no_lease_it_lost(seed: int) -> None:
    """Its look begins while it is fenced, and ends after it has renewed. In between other hosts remove it."""

    async def story() -> None:
        source = numbers(6)
        cluster = Cluster(Numbers, source, check=judge_number, faults=replace(LATENCY_ONLY, silence=(1, 2)), seed=seed)
        a, b = cluster.start("a"), cluster.start("b")
        await cluster.converged(within=90)
        await cluster.run_for(60)

        def fenced() -> bool:
            supervisor = a.processor.statistics() if a.processor else None
            return supervisor is not None and supervisor.fenced

        def interfere(verb: str, key: str) -> str | None:
            member = "a" in cluster.group.document.members
            if key == cluster.layout.group:
                unheard = not member  # the next look is slow, so it knows only the result of the last one
            elif key.startswith(cluster.layout.hosts):
                unheard = member if verb == "put" else fenced()
            else:
                unheard = False
            return "lost_request" if unheard else None

        a.view.interfere = interfere
        while "a" in cluster.group.document.members:
            await cluster.run_for(0.01)
        cluster.pause(b)  # before it has begun with the partitions it took
        for n in range(20):
            source.append(str(n % 6), [b"%d" % n])
            await cluster.run_for(1)
        a.view.interfere = None
        cluster.resume(b)
        await cluster.converged(within=120)
        await cluster.finished()
        assert cluster.seen()["expired"] == 1

    run(story(), seed=seed)


def test_the_second_process_of_a_name_replaces_the_first() -> None:
    async def story() -> None:
        cluster = Cluster(Numbers, numbers(4), check=judge_number)
        first = cluster.start("a")
        await cluster.converged(within=90)
        cluster.start("a")
        with anyio.fail_after(60):
            await first.done.wait()
        assert cluster.events["ended: Fenced"] == 1
        await cluster.converged(within=60)
        await cluster.finished()

    run(story())


def test_new_partitions_are_assigned() -> None:
    async def story() -> None:
        source = numbers(2)
        cluster = Cluster(Numbers, source, check=judge_number, settings={"partition_refresh_interval": 30})
        cluster.start("a")
        await cluster.converged(within=90)
        source.add_partition("2")
        source.append("2", [b"1", b"2"])
        await cluster.converged(within=90)
        await cluster.finished()
        assert cluster.seen()["rows"] == 102

    run(story())


# It can fail


def test_a_failed_check_names_the_record() -> None:
    async def story() -> None:
        cluster = Cluster(Numbers, numbers(1), check=lambda ended: "is odd" if ended.sequence == 21 else None)
        cluster.start("a")
        await cluster.run_for(60)

    with pytest.raises(InvariantViolation, match=r"partition 0: record 21 is odd \(at 10\d\d\.\d+ s\)"):
        run(story())


def test_a_cluster_without_hosts_does_not_settle() -> None:
    async def story() -> None:
        await Cluster(Numbers, numbers(1), check=judge_number).converged(within=60)

    with pytest.raises(
        InvariantViolation, match="has not converged within 60 s: partition 0 is committed up to -1, not 147"
    ):
        run(story())


def test_a_hanging_handler_delays_a_stop_up_to_its_limits() -> None:
    class Hangs(PartitionHandler):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await SYSTEM.sleep(1e6)

    async def story() -> None:
        cluster = Cluster(Hangs, numbers(1))
        a = cluster.start("a")
        await cluster.run_for(60)
        await cluster.stop(a, within=60)
        await cluster.finished()

    with pytest.raises(InvariantViolation, match="partition 0: is committed up to -1, not 147"):
        run(story())


# As others use it


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {"__name__": "page"})
    with pytest.raises(InvariantViolation, match=r"record \d+ of \d+ became"):
        exec(compile(example.replace("n * n}", "n * n + (n == 500)}"), str(PAGE), "exec"), {"__name__": "page"})


def test_the_command_runs_seeds_and_prints_a_report() -> None:
    done = CliRunner().invoke(command.app, ["--seeds", "2", "--hours", "0.05", "--stream", "positions"])
    assert done.exit_code == 0, done.output
    assert re.search(r"2 seeds, \d\.\d cluster-hours", done.output)
    assert re.search(r"partitions with positions\D+2\b", done.output)
    assert re.search(r"records: each ended once\D+[\d,]+", done.output)


def test_a_failing_seed_is_printed_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(seed: int, **options: object) -> None:
        raise SimulationError("partition 3: lost")

    monkeypatch.setattr(command, "simulate", breaks)
    done = CliRunner().invoke(command.app, ["--first", "17", "--hours", "0.25", "--stream", "log"])
    assert done.exit_code == 1
    assert "Seed 17 breaks: partition 3: lost" in done.output
    assert "python -m tests.simulation --seed 17 --hours 0.25 --hosts 5 --partitions 6 --stream log" in done.output
