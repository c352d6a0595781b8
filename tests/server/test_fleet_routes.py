"""The fleet over HTTP, from documents that hosts have written."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.admin.fleet import Fleet
from actorproc.admin.fleet_watch import FleetWatch
from actorproc.config.settings import Settings
from actorproc.counts import Counts
from actorproc.errors import ActorprocError
from actorproc.server import dashboard_app, letter_routes
from actorproc.server.feeds import Feed
from actorproc.storage.names import ProcessorLayout
from actorproc.stores import open_store
from tests.server.fleet import NAME, FakeFleet


@asynccontextmanager
async def client(fleet: FakeFleet, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = dashboard_app(fleet.container, Settings(**settings))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test/api/processors/") as opened:
        yield opened


async def test_verdicts_with_reasons_and_errors_grouped(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        assert (await http.get("../processors")).json()["processors"] == [NAME]
        view = (await http.get(NAME)).json()
    verdicts = {found["partition"]: found.get("verdict", "ok") for found in view["partitions"]}
    assert verdicts == dict.fromkeys(fleet.partitions, "ok") | {"3": "retrying", "5": "stuck", "7": "moving"}
    assert [(group["verdict"], group["partitions"]) for group in view["errors"]] == [
        ("retrying", ["3"]),
        ("stuck", ["5"]),
    ]
    assert [host["leases"] for host in view["hosts"]] == [8, 8]


async def test_partitions_that_have_ended_are_no_trouble_have_no_lag_and_need_no_host(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, ended=["0", "1"])
    await fleet.write()
    async with client(fleet) as http:
        view = (await http.get(NAME)).json()
        explanation = (await http.get(f"{NAME}/partitions/1")).json()["explanation"]
        load = (await http.get(f"{NAME}/cost")).json()["load"]
    assert [found.get("lag") for found in view["partitions"] if found.get("verdict") == "ended"] == [0, 0]
    assert [group["verdict"] for group in view["errors"]] == ["retrying", "stuck"]
    assert explanation.endswith("It has ended: it was split or merged, and all of it is processed.")
    assert load["partitions"] == 14


async def test_partitions_of_silent_hosts_are_read_from_their_commits(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write(hosts=["host-00"])
    async with client(fleet) as http:
        view = (await http.get(NAME)).json()
        silent = [found for found in view["partitions"] if found.get("verdict") == "silent"]
        assert {found["owner"] for found in silent} == {"host-01"}
        assert "has no heartbeat" in silent[0]["reason"]
        answer = (await http.get(f"{NAME}/partitions/1")).json()
    assert "another host takes over" in answer["explanation"]


async def test_a_partition_is_explained_with_cause_and_advice(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        stuck = (await http.get(f"{NAME}/partitions/5")).json()["explanation"]
        retried = (await http.get(f"{NAME}/partitions/3")).json()["explanation"]
        unknown = await http.get(f"{NAME}/partitions/99")
    assert "has been on host-01 for 15 min, with epoch 3: it had no owner" in stuck
    assert "has been stuck for 2 min: PartitionStuck: no progress for 300 s" in stuck
    assert "Attempt 3 at 40 records from 10004 on has failed; the next one begins in" in retried
    assert unknown.status_code == 400


async def test_only_changed_partitions_follow_the_first_view(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    feed = Feed(fleet.container, NAME, Settings())
    views = feed.views()
    assert len((await anext(views)).partitions) == 16
    await fleet.write(hosts=["host-00"], totals=(20_000, 9_000))
    changed = {view.partition for view in (await anext(views)).partitions}
    assert changed == {name for name in fleet.partitions if fleet.owner(name) == "host-00"}
    version = (await feed.view()).version
    assert (await anext(feed.views(version))).partitions == []
    assert len((await anext(feed.views(version + 1))).partitions) == 16, "a version of an earlier server"
    await feed.close()


async def test_an_unknown_processor_is_refused(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        answer = await http.get("Flihgts")
    assert answer.status_code == 400
    assert "there are: Flights" in answer.json()["error"]


@pytest.mark.parametrize(
    ("act", "body"),
    [
        ("pause", {"all": True}),
        ("resume", {"all": True}),
        ("dead-letters/purge", {"all": True}),
        ("reset", {"all": True, "to": "earliest", "yes": True}),
    ],
)
async def test_an_act_on_an_unknown_processor_is_refused_and_writes_nothing(
    tmp_path: Path, act: str, body: Any
) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    before = sorted(tmp_path.rglob("*"))
    async with client(fleet, http_token="w" * 16) as http:
        answer = await http.post(f"NOPE/{act}", json=body, headers={"Authorization": "Bearer " + "w" * 16})
    assert answer.status_code == 400
    assert "no processor 'NOPE'" in answer.json()["error"]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("x" * 16, 401), ("r" * 16, 403), ("w" * 16, 200)])
async def test_writing_needs_the_write_token(tmp_path: Path, token: str | None, status: int) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet, http_token="w" * 16, http_read_token="r" * 16) as http:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await http.post(f"{NAME}/dead-letters/purge", json={"all": True}, headers=headers)
        assert answer.status_code == status, answer.text
        assert ("may only read" in answer.text) == (status == 403)


async def test_without_a_write_token_each_write_is_refused(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        answer = await http.post(f"{NAME}/dead-letters/purge", json={})
    assert answer.status_code == 403
    assert "ACTORPROC_HTTP_TOKEN" in answer.json()["error"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({}, "no choice of dead letters"),
        ({"all": False}, "no choice of dead letters"),
        ({"all": True, "kind": "KeyError"}, "`all` and a choice of dead letters"),
        ({"ids": []}, "length >= 1 - at `$.ids`"),
        ({"kind": ""}, "length >= 1 - at `$.kind`"),
        ({"id": ["0:1"]}, "unknown field `id`"),
        ({"replayed": "maybe"}, "'maybe' - at `$.replayed`"),
        ([], "Expected `object`"),
    ],
)
@pytest.mark.parametrize("action", ["purge", "replay"])
async def test_letters_are_acted_on_only_if_the_request_chooses_them(
    tmp_path: Path, action: str, choice: Any, message: str
) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet, http_token="w" * 16) as http:
        headers = {"Authorization": "Bearer " + "w" * 16}
        answer = await http.post(f"{NAME}/dead-letters/{action}", json=choice, headers=headers)
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text
    assert '{"all": true}' in answer.json()["error"]


async def test_twenty_hosts_and_two_thousand_partitions_fit_the_first_view(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, hosts=20, partitions=2_000)
    await fleet.write()
    async with client(fleet) as http:
        began = time.perf_counter()
        async with http.stream("GET", NAME) as answer:
            size = sum([len(part) async for part in answer.aiter_raw()])
        seconds = time.perf_counter() - began
        assert answer.headers["content-encoding"] == "gzip"
        assert len(json.loads((await http.get(NAME)).content)["partitions"]) == 2_000
    assert size < 200 * 1024
    assert seconds < 10  # under 1 s on a quiet machine: docs/monitoring.md


async def test_watchers_see_the_error_of_an_unreadable_container(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    group = tmp_path / NAME / "group.json"
    feed = Feed(fleet.container, NAME, Settings())
    views = feed.views()
    assert (await anext(views)).problem is None
    whole = group.read_bytes()
    group.write_bytes(b"{}")
    assert "group.json" in str((await anext(views)).problem)
    group.write_bytes(whole)
    assert (await anext(views)).problem is None
    await feed.close()


async def test_watchers_see_an_error_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: FleetWatch) -> Fleet:
        raise RuntimeError("broken")

    fleet = FakeFleet(tmp_path)
    await fleet.write()
    feed = Feed(fleet.container, NAME, Settings())
    views = feed.views()
    await anext(views)
    monkeypatch.setattr(FleetWatch, "look", broken)
    with anyio.fail_after(10), pytest.raises(ActorprocError, match="broken"):
        await anext(views)
    await feed.close()


async def test_acts_change_the_group_and_wrong_bodies_are_refused(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    token = {"Authorization": "Bearer 0123456789abcdef"}
    async with client(fleet, http_token="0123456789abcdef") as http:
        answers = [
            await http.post(f"{NAME}/{act}", json=body, headers=token)
            for act, body in [
                ("pause", {"partitions": ["3"], "reason": "a service is down"}),
                ("move", {"partition": "1", "host": "host-00"}),
                ("drain", {"host": "host-01"}),
                ("resume", {"all": True}),
                ("release", {"partition": "1"}),
                ("release", {"host": "host-01"}),
            ]
        ]
        assert [answer.json()["now"] for answer in answers[2:]] == [
            "paused: 3 (a service is down); drained: host-01; placed: 1 on host-00",
            "drained: host-01; placed: 1 on host-00", "drained: host-01", "nothing is paused, drained or placed",
        ]  # fmt: skip
        assert (await http.post(f"{NAME}/pause", json={"all": True})).status_code == 401
        (last, *_, first) = (await http.get(f"{NAME}/audit", headers=token)).json()["acts"]
        assert (first["what"], first["to"], first["reason"]) == ("pause", {"partitions": "3"}, "a service is down")
        assert (last["what"], last["to"]) == ("release", {"host": "host-01"})
        for kind in ("audit", "dead-letters"):
            assert (await http.get(f"{NAME}/{kind}?limit=0", headers=token)).status_code == 400
        for act, body in [
            ("pause", {}), ("pause", {"partitions": []}), ("pause", {"all": True, "partitions": ["3"]}),
            ("resume", {"host": "host-00"}), ("drain", {"partition": "3"}), ("release", {}),
            ("move", {"partition": "1"}), ("drain", {"host": "nobody"}), ("pause", {"typo": 1}),
        ]:  # fmt: skip
            assert (await http.post(f"{NAME}/{act}", json=body, headers=token)).status_code == 400


async def test_the_last_day_is_answered_as_a_whole_and_for_a_partition(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    await fleet.write_history()
    async with client(fleet) as http:
        total = (await http.get(f"{NAME}/history")).json()
        one = (await http.get(f"{NAME}/history", params={"partition": "6"})).json()
        nothing = (await http.get(f"{NAME}/history", params={"partition": "none"})).json()
    assert len(total["lag"]) == len(total["records"]) == 288
    assert sum(total["records"]) > 15 * sum(one["records"]) > 0
    most = [max(lag for lag in series["lag"] if lag is not None) for series in (total, one)]
    assert most[0] > most[1] > 0
    assert [host for _, host in one["owners"]] == ["host-00"]
    (mark,) = [mark for mark in total["marks"] if "0.2.0" in mark["text"]]
    assert mark["text"] == "host-01 started; actorproc: 0.1.0 → 0.2.0; version: a1b2c3d → e83c516"
    assert set(nothing["lag"]) == {None}
    assert total["trouble"]["5"] == [285, 286, 287]
    assert "0" not in total["trouble"]


async def test_a_corrupt_history_is_left_out(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    await fleet.write_history(1)
    (first, _) = sorted((tmp_path / NAME / "history").iterdir())
    first.write_bytes(b"nothing")
    async with client(fleet) as http:
        total = (await http.get(f"{NAME}/history")).json()
    assert sum(total["records"]) > 0


async def test_useful_hosts_and_the_cost_of_a_month_are_answered(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path)
    await fleet.write()
    async with client(fleet) as http:
        rare = (await http.get(f"{NAME}/cost")).json()
    async with client(fleet, history_interval=0, lease_renew_interval=1) as http:
        often = (await http.get(f"{NAME}/cost")).json()
    assert rare["load"]["hosts"] == rare["scale"]["hosts"] == 2
    assert rare["load"]["partitions"] == 16
    assert {kind["purpose"] for kind in rare["per_month"]} - {kind["purpose"] for kind in often["per_month"]} == {
        "histories"
    }
    assert often["dollars"]["S3 Standard"] > rare["dollars"]["S3 Standard"] > 3


class Refuses(PartitionHandler):
    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.dead_letter(record, "no")
        await ctx.commit()


async def test_a_replay_shows_how_far_it_is(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"x"] * 12)
    settings: dict[str, Any] = {"max_batch_records": 1, "dead_letter_limit": 1}
    await Processor(Refuses, source=log, container=container, **settings).run(until_end=True)
    app = dashboard_app(container, Settings(http_token="w" * 16))
    path, seen = "/api/processors/Refuses/dead-letters/replay", list[tuple[int, int]]()
    headers = {"Authorization": f"Bearer {'w' * 16}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:

        async def replay() -> None:
            answer = await http.post(path, json={"all": True}, headers=headers)
            assert answer.json()["replayed"] == 12, answer.text
            polling.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replay)
            with anyio.CancelScope() as polling:
                while True:
                    found = (await http.get(path, headers=headers)).json()
                    seen.append((found["done"], found["files"]))
                    await anyio.sleep(0.001)
        assert {files for _, files in seen} <= {0, 12}
        assert len({done for done, files in seen if files}) > 1, seen
        assert (await http.get(path, headers=headers)).json() == {"done": 0, "files": 0}


async def test_letters_beyond_the_answer_are_counted_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"x"] * 12)
    await Processor(Refuses, source=log, container=container, dead_letter_limit=1).run(until_end=True)
    app, path = dashboard_app(container, Settings()), "/api/processors/Refuses/dead-letters"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:

        async def counted(limit: int) -> tuple[int, bool, int, bool]:
            found = (await http.get(path, params={"limit": limit})).json()
            return len(found["letters"]), found["more"], found["total"], found["total_exact"]

        assert await counted(5) == (5, True, 12, True)
        assert await counted(12) == (12, False, 12, True)
        monkeypatch.setattr(letter_routes, "COUNTING", 0.0)
        assert await counted(5) == (5, True, 6, False)


async def test_counts_of_a_partition_go_on_when_its_host_restarts(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"x"] * 12)
    settings: dict[str, Any] = {"dead_letter_limit": 1, "lease_renew_interval": 0.1}
    await Processor(Refuses, source=log, container=container, **settings).run(until_end=True)
    async with (
        Processor(Refuses, source=log, container=container, **settings),
        open_store(container) as store,
    ):
        with anyio.fail_after(30):
            watch = FleetWatch(store, ProcessorLayout("Refuses"), 60.0)
            while (view := (await watch.look()).partitions["0"]).state != "running":
                await anyio.sleep(0.05)
    assert view.counts == Counts(12, 0, 12)
