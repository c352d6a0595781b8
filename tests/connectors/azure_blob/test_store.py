"""`az://`: URLs, options, refusals and warnings, on Azurite."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    ResourceTypes,
    RetentionPolicy,
    generate_account_sas,
    generate_container_sas,
)

from actorproc.admin.doctor import examine
from actorproc.config.settings import Settings
from actorproc.errors import CredentialsExpired, StoreAccessError, StoreRefused, StoreUnavailable, UsageError
from actorproc.runtime.nudge import UdpNudges
from actorproc.storage.probe import ensure_safe
from actorproc.stores import open_store, overlap, own_url
from tests.connectors.shared.azure_storage import ACCOUNT, KEY, BlobServer
from tests.servers import free_ports
from tests.stores.proxy import Request, proxied, reply

ABFSS = "abfss://state@shop.dfs.core.windows.net"


async def _open(url: str, **settings: Any) -> None:
    async with open_store(url, Settings.load(**({"store_patience": 0.5} | settings))):
        pass


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("az://shop/state", "az://shop/state"),
        ("az://shop/state/a/b/", "az://shop/state/a/b"),
        (f"{ABFSS}/a", "az://shop/state/a"),
        (ABFSS, "az://shop/state"),
        ("abfss://state@shop.blob.core.windows.net/a", "az://shop/state/a"),
    ],
)
def test_a_container_has_one_url_of_ours(url: str, own: str) -> None:
    store = open_store(url, Settings.load(az_sas_token="x"))
    assert store.url == own


@pytest.mark.parametrize(
    "url",
    [
        "az://shop", "az://shop/", "az://SHOP/state", "az://shop/state/a?sv=1&sig=hunter2", "az://shop.evil.com/state", "az://shop/a",
        "az://shop/-state", "az://me:hunter2@shop/state", "abfss://state@shop", "abfss://state:hunter2@shop.dfs.x/y",
        "abfss://shop.dfs.core.windows.net/state", "abfss://state@a.b.dfs.core.windows.net/x",
    ],
)  # fmt: skip
def test_a_url_that_names_no_container_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"write az://ACCOUNT/CONTAINER/prefix|must not contain cred") as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"az_account_key": "hunter2!"}, "az_account_key: is no account key"),
        ({"az_account_key": "aGk=", "az_sas_token": "hunter2"}, "give az_account_key or az_sas_token, not both"),
        ({"az_endpoint": "localhost:10000"}, "az_endpoint = 'localhost:10000': must be a whole URL"),
        ({"az_endpoint": "http://me:hunter2@host"}, "must not contain credentials"),
        ({"az_account_key": "@gone"}, "az_account_key: begins with @, and the file that it names cannot be read"),
        ({"az_acount_key": "hunter2"}, "did you mean az_account_key?"),
    ],
)
def test_a_wrong_option_is_named_without_its_secret(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message).replace(r"\?", ".")) as refused:
        open_store(ABFSS, Settings.load(**given))
    assert "hunter2" not in str(refused.value)


def test_places_are_compared_and_spelled() -> None:
    assert own_url(f"{ABFSS}/x") == f"{ABFSS}/x"
    assert own_url("abfs://c@a.dfs.core.windows.net") == "abfss://c@a.dfs.core.windows.net"
    one, other = (open_store(url, Settings.load(az_sas_token="x")).url for url in (f"{ABFSS}/p", "az://shop/state"))
    assert overlap(one, other)
    assert not overlap("az://shop/state", "az://shop/states")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {}),
        (
            {"az_account_key": KEY},
            {
                "fs.azure.account.auth.type.shop.dfs.core.windows.net": "SharedKey",
                "fs.azure.account.key.shop.dfs.core.windows.net": KEY,
            },
        ),
        (
            {"az_sas_token": "?sv=1&sig=x"},
            {
                "fs.azure.account.auth.type.shop.dfs.core.windows.net": "SAS",
                "fs.azure.sas.fixed.token.shop.dfs.core.windows.net": "sv=1&sig=x",
            },
        ),
    ],
)
def test_spark_reaches_a_container_with_the_same_credentials(given: dict[str, Any], options: dict[str, str]) -> None:
    hadoop = open_store("az://shop/state/p", Settings.load(**given)).backend.hadoop
    assert hadoop is not None
    assert hadoop.url == f"{ABFSS}/p"
    assert hadoop.options == options
    assert hadoop.packages == ["org.apache.hadoop:hadoop-azure:{hadoop}"]
    assert "sig" not in repr(hadoop)


def test_spark_finds_other_clouds_of_azure_and_no_emulator() -> None:
    china = open_store("az://shop/state", Settings.load(az_endpoint="https://shop.blob.core.chinacloudapi.cn")).backend
    assert china.hadoop is not None
    assert china.hadoop.url == "abfss://state@shop.dfs.core.chinacloudapi.cn"
    assert open_store("az://shop/state", Settings.load(az_endpoint="http://127.0.0.1:1/shop")).backend.hadoop is None


async def test_hosts_of_a_container_are_nudged_on_other_machines() -> None:
    """Not so for an emulator on this one."""
    given = {"az_endpoint": "http://127.0.0.1:1/shop"}
    far, near = (open_store("az://shop/state", Settings.load(**settings)) for settings in ({}, given))
    assert far.backend.route == "192.0.2.1"
    nudges = UdpNudges(near.backend.route, None, "p")
    async with nudges.listening(lambda: None):
        assert nudges.address is not None
        assert nudges.address.startswith("127.0.0.1:")


async def test_an_unknown_account_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot reach https://nobody0.*check the account's name in the URL"):
        await _open("az://nobody0/state", az_sas_token="sig=x", store_timeout=2)


async def test_an_endpoint_without_a_listener_fails_at_once() -> None:
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}/shop"
    with pytest.raises(StoreUnavailable, match=rf"cannot reach {endpoint}: .*check az_endpoint and the network"):
        await _open("az://shop/state", az_endpoint=endpoint, az_account_key=KEY)


@pytest.mark.servers
class TestOnAzurite:
    async def test_a_prefix_keeps_processors_of_a_container_apart(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        settings = Settings.load(**azurite.settings)
        async with (
            open_store(f"az://{ACCOUNT}/{container}", settings) as whole,
            open_store(f"abfss://{container}@{ACCOUNT}.dfs.core.windows.net/a/b/", settings) as one,
            open_store(f"az://{ACCOUNT}/{container}/a/bc", settings) as other,
        ):
            await one.put("x/key", b"one")
            await other.put("x/key", b"other")
            assert [e.key for e in (await one.list("")).entries] == ["x/key"]
            assert [e.key for e in (await one.list("x/", after="x/a")).entries] == ["x/key"]
            assert [e.key for e in (await whole.list("")).entries] == ["a/b/x/key", "a/bc/x/key"]

    @pytest.mark.parametrize("key", ["a//b", "%2e%2e/x", "tab\there", "ends.", "ü/é", "a?b=c&d", "control\x01"])
    async def test_a_key_is_no_path(self, azurite: BlobServer, key: str) -> None:
        async with open_store(await azurite.new_url(), Settings.load(**azurite.settings)) as store:
            tag = await store.create(key, b"body")
            found = await store.get(key)
            assert found is not None
            assert (found.body, found.tag) == (b"body", tag)
            await store.put("z", b"after")
            if key != "control\x01":  # Azurite lists what is no XML
                assert [e.key for e in (await store.list("", after="")).entries] == sorted([key, "z"])
            await store.delete(key)
            assert await store.get(key) is None

    async def test_azures_own_client_sees_the_same(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        async with azurite.client() as client:
            async with open_store(f"az://{ACCOUNT}/{container}/p", Settings.load(**azurite.settings)) as store:
                tag = await store.create("größe/1", b"body")
                theirs = client.get_blob_client(container, "p/größe/1")
                properties = await theirs.get_blob_properties()
                assert (properties.etag, properties.size) == (f'"{tag}"', 4)
                uploaded = await theirs.upload_blob(b"changed", overwrite=True)
                found = await store.get("größe/1")
            assert found is not None
            assert (found.body, f'"{found.tag}"') == (b"changed", uploaded["etag"])

    async def test_a_listing_goes_on_page_by_page(self, azurite: BlobServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("actorproc.connectors.azure_blob.store.PAGE", 7)
        async with open_store(await azurite.new_url(), Settings.load(**azurite.settings)) as store:
            keys = [f"many/{n:03}" for n in range(30)]
            for key in keys:
                await store.put(key, b"")
            asked = store.requests["list"]
            assert [e.key for e in (await store.list("many/")).entries] == keys
            assert store.requests["list"] - asked == 5
            assert [e.key for e in (await store.list("many/", after=keys[4], limit=9)).entries] == keys[5:14]
            assert [e.key for e in (await store.list("many/", after="many/0045", limit=2)).entries] == keys[5:7]
            assert [e.key for e in (await store.list("many/", after=keys[-1])).entries] == []

    async def test_a_service_that_ignores_where_to_begin_is_read_to_the_end(self, azurite: BlobServer) -> None:
        """As services before 2026-02-06 do."""

        async def old(request: Request) -> bytes:
            head = re.sub(rb"&startFrom=[^& ]*", b"", request.head)
            return await proxy.forward(Request(request.method, request.target, head, request.headers, request.body))

        url = await azurite.new_url()
        sas = {"az_sas_token": _account_sas(), "az_account_key": None}
        async with proxied(azurite) as (proxy, front):
            proxy.on_request = old
            async with open_store(url, Settings.load(**front.settings | sas)) as store:
                for n in range(9):
                    await store.put(f"d/{n}", b"")
                assert [e.key for e in (await store.list("d/", after="d/5", limit=2)).entries] == ["d/6", "d/7"]
                await ensure_safe(store, "probe/")

    async def test_a_missing_container_is_refused_saying_so(self, azurite: BlobServer) -> None:
        with pytest.raises(
            StoreAccessError, match=r"az://devstoreaccount1/nowhere/x: list.*ContainerNotFound.*create the"
        ):
            await _open(f"az://{ACCOUNT}/nowhere/x", **azurite.settings)

    async def test_a_container_that_vanishes_is_refused_by_every_verb(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**azurite.settings)) as store:
            async with azurite.client() as client:
                await client.delete_container(container)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.get("key"),
                lambda: store.get("key", tail=3),
                lambda: store.put("key", b""),
                lambda: store.create("key", b""),
                lambda: store.swap("key", b"", "x"),
                lambda: store.list(""),
                lambda: store.delete("key"),
            ]
            for call in calls:
                with pytest.raises(StoreRefused, match=r"ContainerNotFound.*create the container"):
                    await call()

    async def test_a_wrong_key_is_refused_naming_the_setting(self, azurite: BlobServer) -> None:
        with pytest.raises(StoreAccessError, match=r"(Authoriz|Authentic)ation.*check az_account_key|firewall"):
            await _open(await azurite.new_url(), **azurite.settings | {"az_account_key": "aGk="})

    @pytest.mark.parametrize("mark", ["", "?"])
    async def test_a_signature_is_enough(self, azurite: BlobServer, mark: str) -> None:
        given = azurite.settings | {"az_account_key": None, "az_sas_token": mark + _account_sas()}
        async with open_store(await azurite.new_url(), Settings.load(**given)) as store:
            await ensure_safe(store, "probe/")
            assert (await examine(store)).safe

    async def test_a_signature_of_the_container_is_enough(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        sas = generate_container_sas(ACCOUNT, container, KEY, permission="racwdl", expiry=_in(1))
        given = azurite.settings | {"az_account_key": None, "az_sas_token": sas}
        async with open_store(f"az://{ACCOUNT}/{container}/x", Settings.load(**given)) as store:
            await ensure_safe(store, "probe/")

    async def test_a_signature_without_a_right_is_refused_at_the_start(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        sas = generate_container_sas(ACCOUNT, container, KEY, permission="rl", expiry=_in(1))
        given = azurite.settings | {"az_account_key": None, "az_sas_token": sas}
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**given)) as store:
            with pytest.raises(StoreAccessError, match="sp=racwdl"):
                await ensure_safe(store, "probe/")

    async def test_credentials_are_in_no_message(self, azurite: BlobServer) -> None:
        (port,) = free_ports(1)
        given = {"az_endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}", "az_sas_token": "sv=1&sig=hunter2"}
        with pytest.raises(StoreUnavailable) as failed:
            await _open("az://shop/state", **given)
        causes = [str(failed.value), repr(failed.value), str(failed.value.__cause__)]
        assert not [text for text in causes if "hunter2" in text]

    @pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", b"garbage\r\n\r\n"])
    async def test_a_malformed_answer_shows_no_signature(self, azurite: BlobServer, answer: bytes) -> None:
        async def malformed(_: Request) -> bytes:
            return answer

        url = await azurite.new_url()
        given = {"az_account_key": None, "az_sas_token": f"{_account_sas()}&x=hunter2"}
        async with proxied(azurite) as (proxy, front):
            proxy.on_request = malformed
            with pytest.raises(StoreUnavailable) as failed:
                await _open(url, **front.settings | given, store_timeout=2)
        assert "hunter2" not in str(failed.value)
        assert "sig=" not in str(failed.value)

    async def test_a_password_of_a_proxy_is_in_no_message(
        self, azurite: BlobServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def bad_gateway(_: Request) -> bytes:
            return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

        async with proxied(azurite) as (proxy, front):
            proxy.on_request = bad_gateway
            port = urlsplit(front.settings["az_endpoint"]).port
            monkeypatch.setenv("https_proxy", f"http://me:hunter2@127.0.0.1:{port}")
            with pytest.raises(StoreUnavailable) as failed:
                await _open("az://shop/state", az_account_key=KEY, store_timeout=2)
        assert "502" in str(failed.value)
        assert "hunter2" not in str(failed.value)

    async def test_a_signature_that_was_renewed_in_its_file_is_used(self, azurite: BlobServer, tmp_path: Path) -> None:
        container, file = await azurite.new_container(), tmp_path / "sas"
        ended = generate_container_sas(ACCOUNT, container, KEY, permission="racwdl", expiry=_in(3 / 3600))
        file.write_text(ended)
        given = azurite.settings | {"az_account_key": None, "az_sas_token": f"@{file}", "store_timeout": 2}
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**given)) as store:
            await store.put("key", b"body")
            await anyio.sleep(4)
            with pytest.raises(StoreRefused, match="the signature has expired: renew az_sas_token"):
                await store.get("key")
            file.write_text(generate_container_sas(ACCOUNT, container, KEY, permission="racwdl", expiry=_in(1)))
            assert (await store.get("key")).body == b"body"  # type: ignore[union-attr]

    async def test_a_blob_under_a_lease_is_refused_saying_so(self, azurite: BlobServer) -> None:
        """Azure answers 412 as to an unmet condition; here nothing can be won by trying again."""
        container = await azurite.new_container()
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**azurite.settings)) as store:
            tag = await store.create("key", b"body")
            async with azurite.client() as client:
                lease = await client.get_blob_client(container, "key").acquire_lease()
                for call in (lambda: store.swap("key", b"new", tag), lambda: store.put("key", b"new")):
                    with pytest.raises(StoreRefused, match=r"LeaseIdMissing.*break the lease"):
                        await call()  # type: ignore[no-untyped-call]
                await lease.release()
            await store.swap("key", b"new", tag)

    async def test_an_end_that_changes_while_it_is_read_is_read_anew(self, azurite: BlobServer) -> None:
        url, changes = await azurite.new_url(), 2

        async def change_between(request: Request) -> bytes:
            nonlocal changes
            answer = await proxy.forward(request)
            if request.method == "HEAD" and changes:
                changes -= 1
                await direct.put("key", b"0123456789"[changes:])
            return answer

        async with (
            proxied(azurite) as (proxy, front),
            open_store(url, Settings.load(**azurite.settings)) as direct,
            open_store(url, Settings.load(**front.settings)) as store,
        ):
            await direct.put("key", b"first")
            proxy.on_request = change_between
            found = await store.get("key", tail=3)
        assert found is not None
        assert (found.body, found.size) == (b"789", 10)

    async def test_directories_of_a_hierarchical_namespace_are_no_objects(self, azurite: BlobServer) -> None:
        """They are listed as blobs without bytes (Azure/azure-sdk-for-python#34734), before what is in them."""

        def directory(name: str) -> bytes:
            properties = (
                "<Last-Modified>Sat, 28 Nov 2026 12:00:00 GMT</Last-Modified><Etag>0x1</Etag>"
                "<ResourceType>directory</ResourceType><Content-Length>0</Content-Length>"
            )
            return f"<Blob><Name>{name}</Name><Properties>{properties}</Properties></Blob>".encode()

        async def hierarchical(request: Request) -> bytes:
            answer = await proxy.forward(request)
            if "comp=list" not in request.target:
                return answer
            head, _, body = answer.partition(b"\r\n\r\n")
            body = re.sub(rb"^[0-9a-f]+\r\n|\r\n0\r\n\r\n$", b"", body)
            body = body.replace(b"<Blobs>", b"<Blobs>" + directory("d") + directory("d/e"))
            head = re.sub(rb"(?i)\r\n(content-length|transfer-encoding):[^\r]*", b"", head)
            return head + f"\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

        url = await azurite.new_url()
        async with proxied(azurite) as (proxy, front), open_store(url, Settings.load(**front.settings)) as store:
            await store.put("d/e/key", b"body")
            proxy.on_request = hierarchical
            assert [e.key for e in (await store.list("")).entries] == ["d/e/key"]

    async def test_a_directory_reads_as_none(self, azurite: BlobServer) -> None:
        container = await azurite.new_container()
        async with azurite.client() as client:
            await client.get_blob_client(container, "d").upload_blob(b"", metadata={"hdi_isfolder": "true"})
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**azurite.settings)) as store:
            assert await store.get("d") is None
            assert await store.get("d", tail=3) is None

    async def test_a_blob_with_snapshots_is_not_deleted_with_them(self, azurite: BlobServer) -> None:
        """They may be somebody's backup."""
        container = await azurite.new_container()
        async with open_store(f"az://{ACCOUNT}/{container}", Settings.load(**azurite.settings)) as store:
            await store.put("key", b"body")
            async with azurite.client() as client:
                await client.get_blob_client(container, "key").create_snapshot()
            with pytest.raises(StoreRefused, match=r"SnapshotsPresent.*delete the snapshots"):
                await store.delete("key")
            assert await store.get("key") is not None

    @pytest.mark.parametrize(
        ("status", "code", "advice"),
        [
            (409, "BlobImmutableDueToPolicy", "remove the policy of immutability"),
            (403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
            (403, "AuthorizationFailure", "the account's firewall refuses it"),
            (403, "KeyBasedAuthenticationNotPermitted", "leave az_account_key out"),
            (409, "UnauthorizedBlobOverwrite", "sp=racwdl"),
            (409, "ContainerBeingDeleted", "it is being deleted"),
            (409, "BlobArchived", "take it out"),
        ],
    )
    async def test_a_refused_write_says_what_to_do(
        self, azurite: BlobServer, status: int, code: str, advice: str
    ) -> None:
        async def refuse(request: Request) -> bytes | None:
            return reply(status, code) if request.write else await proxy.forward(request)

        url = await azurite.new_url()
        async with proxied(azurite) as (proxy, front), open_store(url, Settings.load(**front.settings)) as store:
            proxy.on_request = refuse
            with pytest.raises(StoreRefused, match=f"{code}.*{advice}"):
                await store.create("key", b"body")

    async def test_a_signature_that_has_expired_is_named(self, azurite: BlobServer) -> None:
        """As Azure words it."""

        async def expired(request: Request) -> bytes:
            detail = "Signature not valid in the specified time frame: Start [..] - Expiry [..]"
            body = "<Error><Code>AuthenticationFailed</Code>"
            body += f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>"
            body += "<Message>Server failed to authenticate the request.</Message></Error>"
            return f"HTTP/1.1 403 X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()

        url = await azurite.new_url()
        async with proxied(azurite) as (proxy, front), open_store(url, Settings.load(**front.settings)) as store:
            proxy.on_request = expired
            with pytest.raises(CredentialsExpired, match="renew az_sas_token"):
                await store.get("key")

    async def test_settings_of_the_account_that_cost_are_warned_of(self, azurite: BlobServer) -> None:
        url = await azurite.new_url()
        async with azurite.client() as client, open_store(url, Settings.load(**azurite.settings)) as store:
            assert await store.backend.warnings() == []
            await client.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=9))
            try:
                (warning,) = await store.backend.warnings()
            finally:
                await client.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))
        assert warning.startswith("the account keeps what is deleted or overwritten for 9 days, and bills it")

    async def test_versions_and_immutability_are_warned_of(self, azurite: BlobServer) -> None:
        async def add_headers(request: Request) -> bytes:
            answer = await proxy.forward(request)
            more = b"\r\nx-ms-version-id: 2026-11-28T12:00:00.0Z\r\nx-ms-has-legal-hold: true\r\n"
            return answer.replace(b"\r\nx-ms-has-legal-hold: false", b"").replace(b"\r\n", more, 1)

        url = await azurite.new_url()
        async with proxied(azurite) as (proxy, front), open_store(url, Settings.load(**front.settings)) as store:
            await store.put("key", b"body")
            assert await store.backend.warnings() == []
            proxy.on_request = add_headers
            await store.put("key", b"body")
            found = [warning.partition(":")[0] for warning in await store.backend.warnings()]
        assert found == [
            "the container has a policy of immutability or a legal hold",
            "the account keeps all versions of blobs",
        ]


def _account_sas() -> str:
    rights = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True)
    kinds = ResourceTypes(service=True, container=True, object=True)
    return generate_account_sas(ACCOUNT, KEY, kinds, rights, _in(1))


def _in(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)
