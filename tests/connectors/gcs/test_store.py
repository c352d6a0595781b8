"""`gs://`: URLs, options, refusals and warnings, on a double of Cloud Storage and on fake-gcs-server."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actorproc.admin.doctor import examine
from actorproc.config.settings import Settings
from actorproc.errors import StoreAccessError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.nudge import UdpNudges
from actorproc.stores import open_store, overlap, own_url
from tests.connectors.gcs.server import GcsServer
from tests.servers import free_ports
from tests.stores.proxy import Request, proxied


async def _open(url: str, **settings: Any) -> None:
    async with open_store(url, Settings.load(**({"store_patience": 0.5} | settings))):
        pass


@pytest.mark.parametrize("url", ["gs://b", "gs://UPPER/x", "gs://a b/x", "gs:///x", "gs://me:hunter2@bucket/x"])
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"write gs://BUCKET/prefix|must not contain credentials") as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gs_endpoint": "localhost:4443"}, "gs_endpoint = 'localhost:4443': must be a whole URL"),
        ({"gs_endpoint": "http://me:hunter2@host"}, "gs_endpoint.* must not contain credentials"),
        (
            {"gs_service_account_key": "hunter2"},
            "gs_service_account_key: is not the content of a service account's key",
        ),
        (
            {"gs_service_account_key": '{"type": "authorized_user"}'},
            "is not the content of a service account's key file",
        ),
        (
            {"gs_service_account_key": "@gone"},
            "gs_service_account_key: begins with @, and the file that it names cannot",
        ),
        ({"gs_anonymous": "perhaps"}, "gs_anonymous = 'perhaps'"),
    ],
)
def test_a_wrong_option_is_named_without_its_secret(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        open_store("gs://bucket/state", Settings.load(**given))
    assert "hunter2" not in str(refused.value)


def test_places_are_compared_and_spelled() -> None:
    assert own_url("gs://bucket/x") == "gs://bucket/x"
    assert overlap("gs://bucket/state", "gs://bucket/state/p")
    assert not overlap("gs://bucket/state", "az://bucket/state")


def test_spark_reaches_a_bucket_by_the_connector_of_its_hadoop() -> None:
    hadoop = open_store("gs://bucket/state/").backend.hadoop
    assert hadoop is not None
    assert hadoop.url == "gs://bucket/state"
    assert hadoop.options["fs.gs.impl"] == hadoop.file_system
    assert open_store("gs://bucket", Settings.load(gs_endpoint="http://h:1")).backend.hadoop is None
    assert hadoop.packages == ["org.apache.hadoop:hadoop-gcp:{hadoop}"]


async def test_a_prefix_keeps_containers_of_a_bucket_apart(gcs: GcsServer) -> None:
    bucket = await gcs.new_bucket()
    settings = Settings.load(**gcs.settings)
    async with (
        open_store(f"gs://{bucket}", settings) as whole,
        open_store(f"gs://{bucket}/a/b/", settings) as one,
        open_store(f"gs://{bucket}/a/bc", settings) as other,
    ):
        await one.put("x/key", b"one")
        await other.put("x/key", b"other")
        assert one.url == f"gs://{bucket}/a/b"
        assert [e.key for e in (await one.list("")).entries] == ["x/key"]
        assert [e.key for e in (await one.list("x/", after="x/a")).entries] == ["x/key"]
        assert [e.key for e in (await whole.list("")).entries] == ["a/b/x/key", "a/bc/x/key"]


@pytest.mark.parametrize("key", ["a/../b", "./a", "a//b", "a/./b", "..", "%2e%2e/x", "tab\there", "x\\y"])
async def test_a_key_is_no_path(gcs: GcsServer, key: str) -> None:
    async with open_store(await gcs.new_url(), Settings.load(**gcs.settings)) as store:
        tag = await store.create(key, b"body")
        found = await store.get(key)
        assert found is not None
        assert (found.body, found.tag) == (b"body", tag)
        assert [e.key for e in (await store.list("")).entries] == [key]
        await store.delete(key)
        assert (await store.list("")).entries == []


@pytest.mark.parametrize("name", ["gcs", pytest.param("fake_gcs", marks=[pytest.mark.servers, pytest.mark.slow])])
async def test_a_missing_bucket_is_refused_saying_so(request: pytest.FixtureRequest, name: str) -> None:
    server: GcsServer = request.getfixturevalue(name)
    with pytest.raises(StoreAccessError, match=r"gs://nowhere/x: list.*create the bucket, or correct its name"):
        await _open("gs://nowhere/x", **server.settings)


async def test_a_bucket_that_vanishes_is_refused_by_every_verb(gcs: GcsServer) -> None:
    bucket = await gcs.new_bucket()
    async with open_store(f"gs://{bucket}", Settings.load(**gcs.settings)) as store:
        await gcs.ask("DELETE", f"/storage/v1/b/{bucket}")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get("key"),
            lambda: store.get("key", tail=3),
            lambda: store.put("key", b""),
            lambda: store.create("key", b""),
            lambda: store.swap("key", b"", "1"),
            lambda: store.list(""),
            lambda: store.delete("key"),
        ]
        for call in calls:
            with pytest.raises(StoreRefused, match="The specified bucket does not exist; create the bucket"):
                await call()


async def test_an_endpoint_without_a_listener_fails_at_once() -> None:
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.raises(StoreUnavailable, match=rf"cannot reach {endpoint}: .*check gs_endpoint and the network"):
        await _open("gs://bucket/x", gs_endpoint=endpoint, gs_anonymous=True)


async def test_an_endpoint_that_accepts_but_never_answers_fails_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=f"no (whole )?answer from {endpoint}"):
            await _open("gs://bucket/x", gs_endpoint=endpoint, gs_anonymous=True, store_timeout=0.5)


REFUSALS = [
    (
        403,
        "retentionPolicyNotMet",
        "Object 'x' is subject to bucket's retention policy",
        "remove the bucket's retention",
    ),
    (403, "objectUnderActiveHold", "Object is under active Event-Based hold", "release the hold"),
    (403, "forbidden", "does not have storage.objects.delete access", "the role 'Storage Object User'"),
    (400, "userProjectMissing", "Bucket is a requester pays bucket", "lets requesters pay"),
    (412, "orgPolicyConstraintFailed", "violates constraint 'x'", "violates constraint"),
]


@pytest.mark.parametrize(("status", "reason", "message", "advice"), REFUSALS)
async def test_a_refused_write_says_what_to_do(
    gcs: GcsServer, status: int, reason: str, message: str, advice: str
) -> None:
    url = await gcs.new_url()
    error = json.dumps({"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(error)}\r\nConnection: close\r\n\r\n".encode()

    async def refuse(request: Request) -> bytes | None:
        return head + error if request.write else await proxy.forward(request)

    async with proxied(gcs) as (proxy, front):
        proxy.on_request = refuse
        async with open_store(url, Settings.load(**front.settings)) as store:
            with pytest.raises(StoreRefused, match=advice):
                await store.create("key", b"body")


async def test_settings_of_the_bucket_that_cost_or_delete_are_warned_of(gcs: GcsServer) -> None:
    bucket = await gcs.new_bucket()

    async def warned(**settings: object) -> list[str]:
        await gcs.ask("PATCH", f"/storage/v1/b/{bucket}", settings)
        return [warning.partition(":")[0] for warning in await store.backend.warnings()]

    def rule(kind: str, **condition: object) -> dict[str, object]:
        return {"rule": [{"action": {"type": kind, "storageClass": "NEARLINE"}, "condition": condition}]}

    async with open_store(f"gs://{bucket}/state", Settings.load(**gcs.settings)) as store:
        assert await warned() == []
        assert await warned(softDeletePolicy={"retentionDurationSeconds": "604800"}) == [
            "the bucket keeps what is deleted or overwritten for 7 days, and bills it"
        ]
        assert await warned(softDeletePolicy={"retentionDurationSeconds": "0"}) == []
        assert await warned(versioning={"enabled": True}) == ["the bucket keeps all versions"]
        expiring = rule("Delete", daysSinceNoncurrentTime=3)
        assert await warned(versioning={"enabled": True}, lifecycle=expiring) == []
        assert await warned(lifecycle=rule("Delete", age=30)) == ["a lifecycle rule deletes objects by age"]
        assert await warned(lifecycle=rule("Delete", age=30, matchesPrefix=["logs/"])) == []
        (moved,) = await warned(lifecycle=rule("SetStorageClass", age=30, matchesPrefix=["state/"]))
        assert moved.startswith("a lifecycle rule moves objects to NEARLINE")
        assert await warned(retentionPolicy={"retentionPeriod": "3"}) == ["the bucket has a retention policy"]
        assert await warned(defaultEventBasedHold=True) == ["the bucket holds each new object"]


async def test_doctor_examines_a_bucket(gcs: GcsServer) -> None:
    async with open_store(await gcs.new_url(), Settings.load(**gcs.settings)) as store:
        found = await examine(store)
        assert found.safe
        assert set(found.latency_ms) == {"put_if_absent", "put_if_match", "put", "get", "list", "delete"}
        assert abs(found.clock_difference) < 5
        assert store.backend.endpoint == gcs.endpoint
        assert (await store.list("")).entries == []


async def test_hosts_of_a_bucket_are_nudged_on_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not so for an emulator on this one."""
    far, near = (
        open_store("gs://bucket", Settings.load(**given)) for given in ({}, {"gs_endpoint": "http://127.0.0.1:1"})
    )
    assert far.backend.route == "192.0.2.1"
    assert near.backend.route == "127.0.0.1"
    nudges = UdpNudges(near.backend.route, None, "p")
    async with nudges.listening(lambda: None):
        assert nudges.address is not None
        assert nudges.address.startswith("127.0.0.1:")
