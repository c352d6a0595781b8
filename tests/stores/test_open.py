"""`open_store`: the meaning of each URL, and the errors for places that do not exist or may not be used."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from botocore import exceptions as aws

from actorproc.config.settings import Settings
from actorproc.errors import StoreRefused, StoreUnavailable, UsageError
from actorproc.sources import open_source
from actorproc.stores import open_store, overlap, own_url
from actorproc.stores.s3_errors import unanswered
from tests.servers import S3Server, free_ports
from tests.stores.proxy import hang_up, listening


async def _open(url: str, **settings: Any) -> None:
    async with open_store(url, Settings.load(**({"store_patience": 0.5} | settings))) as store:
        await store.list("")


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="credentials") as refused:
        open_store("s3://bucket/state", Settings.load(s3_endpoint="http://me:hunter2@localhost:9000"))
    with pytest.raises(UsageError, match="credentials") as also:
        open_store("s3://me:hunter2@bucket/state")
    assert "hunter2" not in f"{refused.value}{also.value}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s3_access_key": "a"}, "s3_access_key and s3_secret_key come together"),
        ({"s3_path_style": "perhaps"}, "store s3://bucket/state: store option s3_path_style = 'perhaps': must be a"),
        (
            {"s3_secret_key": "@gone"},
            "store option s3_secret_key: begins with @, and the file that it names cannot be read",
        ),
        ({"s3_secret_key": ["hunter2"]}, "store option s3_secret_key: must be a valid string"),
    ],
)
def test_a_wrong_option_is_named_by_the_store_that_has_it(given: dict[str, Any], message: str) -> None:
    settings = Settings.load(**given)
    open_store("memory://other", settings)
    with pytest.raises(UsageError) as refused:
        open_store("s3://bucket/state", settings)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_secret_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("two\n")
    settings = Settings.load(s3_access_key="@@one", s3_secret_key=f"@{tmp_path}/secret")
    hadoop = open_store("s3://bucket", settings).backend.hadoop
    assert hadoop is not None
    assert hadoop.options == {"fs.s3a.access.key": "@one", "fs.s3a.secret.key": "two"}
    assert "two" not in repr(hadoop)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("s3a://bucket/x", "s3://bucket/x"),
        ("s3n://bucket/a:b//c", "s3://bucket/a:b//c"),
        ("S3A://bucket", "s3://bucket"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3:/bucket/x", None),
        ("file:/var/x", "file:///var/x"),
        ("file:///var/x", "file:///var/x"),
        ("file://x", "file://x"),
        ("state", "state"),
        ("a: b/c", "a: b/c"),
        ("hdfs:/x", None),
        ("abfss://c@account/x", "abfss://c@account/x"),
        ("abfs://c@account/x", "abfss://c@account/x"),
        ("wasbs://c@account/x", None),
    ],
)
def test_a_place_of_hadoop_is_spelled_as_our_own(given: str, own: str | None) -> None:
    assert own_url(given) == own


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("wasbs://c@account.blob.core.windows.net/state", "unknown scheme 'wasbs'"),
        ("redis://me:hunter2@host/0", "unknown scheme 'redis'"),
        ("s3a://me:hunter2@bucket/state", r"unknown scheme 's3a' \(did you mean s3://bucket/state\?\)"),
    ],
)
def test_an_unknown_scheme_is_named_first_and_no_secret_is_shown(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as store:
        open_store(url)
    with pytest.raises(UsageError, match=f"there is no '{url.partition(':')[0]}' source") as source:
        open_source(url)
    assert "hunter2" not in f"{store.value}{source.value}"


async def test_credentials_in_the_endpoint_of_the_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hunter2@localhost:9000")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL") as refused:
        await _open("s3://bucket/state", s3_access_key="a", s3_secret_key="b")
    assert "hunter2" not in str(refused.value)


async def test_memory_is_shared_by_name() -> None:
    async with (
        open_store("memory://shared") as one,
        open_store("memory://shared") as two,
        open_store("memory://x") as other,
    ):
        await one.put("key", b"body")
        assert await two.get("key") is not None
        assert await other.get("key") is None


async def test_folder_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = {
        f"file://{tmp_path}/absolute": "absolute",
        "file://relative/deeper": "relative/deeper",
        "plain": "plain",
        "./dotted/": "dotted",
        "with: colon": "with: colon",
        "per%20cent": "per%20cent",
        "~/mine": "home/mine",
    }
    for url, folder in places.items():
        async with open_store(url) as store:
            await store.put("key", b"body")
            assert store.url == f"file://{tmp_path / folder}"
        assert (tmp_path / folder / "key").read_bytes() == b"body"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "not complete"),
        ("memory://", "not complete"),
        ("file://", "not complete"),
        ("s3://", "not complete"),
        ("s3:bucket/prefix", "not complete"),
        ("gcs://bucket", "unknown scheme 'gcs'"),
        ("https://bucket.s3.amazonaws.com", "unknown scheme 'https'"),
        ("S3://bucket", r"unknown scheme 'S3' \(did you mean s3://bucket\?\)"),
        ("s3a://bucket/state", r"unknown scheme 's3a' \(did you mean s3://bucket/state\?\)"),
    ],
)
def test_a_url_of_no_store_is_refused_with_the_known_forms(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_store(url)
    known = "write file:///FOLDER, file://FOLDER, a plain path, abfss://..., az://..., gs://..., or s3://BUCKET/PREFIX"
    assert known in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other", "does"),
    [
        ("s3://b/state/p", "s3://b/state/p/", True),
        ("s3://b/state/p", "s3://b/state/p/events", True),
        ("s3://b/events/x/p", "s3://b/events", True),
        ("s3://b/p", "s3://b", True),
        ("s3://b/state/p", "s3://b/state/p2", False),
        ("s3://b/state/p", "s3://c/state/p", False),
        ("s3://b/state/p", "file:///state/p", False),
        ("file:///state/p", "file:///state", True),
        ("memory://state/p", "memory://state", False),
    ],
)
def test_places_overlap_if_one_contains_the_other(one: str, other: str, does: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is does


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "events")
    assert overlap(f"file://{tmp_path}/link/x", f"file://{tmp_path}/events")


@pytest.mark.parametrize("bucket", ["", "a b"])
async def test_an_impossible_bucket_name_is_refused(bucket: str) -> None:
    with pytest.raises(UsageError, match=f'Invalid bucket name "{bucket}"'):
        await _open(f"s3://{bucket}/prefix", s3_access_key="a", s3_secret_key="b")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://", "http://my_minio:9000", "http://[::1"])
async def test_an_endpoint_that_is_not_a_url_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match=r"check s3_endpoint|Custom endpoint .* was not a valid URI"):
        await _open("s3://bucket", s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b")


async def test_an_endpoint_of_the_environment_that_is_no_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://my_minio:9000")
    with pytest.raises(UsageError, match=r"http://my_minio:9000; check s3_endpoint .* and AWS_ENDPOINT_URL"):
        await _open("s3://bucket", s3_access_key="a", s3_secret_key="b")


async def test_a_prefix_keeps_containers_of_a_bucket_apart(s3_server: S3Server) -> None:
    bucket = await s3_server.new_bucket()
    settings = Settings.load(**s3_server.settings)
    async with (
        open_store(f"s3://{bucket}", settings) as whole,
        open_store(f"s3://{bucket}/a/b/", settings) as one,
        open_store(f"s3://{bucket}/a/bc", settings) as other,
    ):
        await one.put("x/key", b"one")
        await other.put("x/key", b"other")
        assert one.url == f"s3://{bucket}/a/b"
        assert [e.key for e in (await one.list("")).entries] == ["x/key"]
        assert [e.key for e in (await one.list("x/", after="x/a")).entries] == ["x/key"]
        assert [e.key for e in (await whole.list("")).entries] == ["a/b/x/key", "a/bc/x/key"]


async def test_settings_come_from_the_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.settings.items():
        monkeypatch.setenv(f"ACTORPROC_{name.upper()}", value)
    async with open_store(await s3_server.new_url()) as store:
        await store.create("key", b"body")


async def test_keys_come_from_the_usual_aws_variables(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    await _open(await s3_server.new_url(), s3_endpoint=s3_server.endpoint)


async def test_keys_come_from_the_usual_aws_profile(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    profile = f"aws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = no\n[shop]\n{profile}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "shop")
    await _open(await s3_server.new_url(), s3_endpoint=s3_server.endpoint)


async def test_a_missing_bucket_is_refused_saying_so(s3_server: S3Server) -> None:
    with pytest.raises(StoreRefused, match=r"s3://nowhere/x: list: NoSuchBucket.*create the bucket"):
        await _open("s3://nowhere/x", **s3_server.settings)


async def test_a_bucket_that_vanishes_is_refused_by_every_verb(s3_server: S3Server) -> None:
    bucket = await s3_server.new_bucket()
    async with open_store(f"s3://{bucket}", Settings.load(**s3_server.settings)) as store:
        await s3_server.delete_bucket(bucket)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get("key"),
            lambda: store.put("key", b""),
            lambda: store.create("key", b""),
            lambda: store.swap("key", b"", '"x"'),
            lambda: store.list(""),
        ]
        for call in calls:
            with pytest.raises(StoreRefused, match="NoSuchBucket"):
                await call()


async def test_a_wrong_access_key_is_refused_naming_the_setting(s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    with pytest.raises(StoreRefused, match=r"InvalidAccessKeyId.*check s3_access_key and s3_secret_key"):
        await _open(url, **{**s3_server.settings, "s3_access_key": "somebody"})


async def test_a_wrong_secret_key_is_refused_naming_the_setting(s3_server: S3Server) -> None:
    url = await s3_server.new_url()
    with pytest.raises(StoreRefused, match=r"SignatureDoesNotMatch.*secret key does not belong"):
        await _open(url, **{**s3_server.settings, "s3_secret_key": "guessed-wrong"})


async def test_missing_credentials_are_refused_saying_where_they_go(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreRefused, match="no credentials found; set s3_access_key"):
        await _open(await s3_server.new_url(), s3_endpoint=s3_server.endpoint)


async def test_an_unknown_profile_is_refused_naming_it(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreRefused, match="nobody"):
        await _open("s3://bucket", **s3_server.settings)


async def test_an_endpoint_without_a_listener_fails_at_once() -> None:
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.raises(StoreUnavailable, match=rf"cannot reach {endpoint}: .*check s3_endpoint and the network"):
        await _open("s3://bucket/x", s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b")


async def test_an_endpoint_that_accepts_but_never_answers_fails_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=rf"no answer from {endpoint} in 0.3 s"):
            await _open("s3://bucket/x", s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b", store_timeout=0.3)


async def test_an_unknown_host_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*args: object, **how: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    endpoint = "http://nobody.invalid:9000"
    with pytest.raises(StoreUnavailable, match=f"cannot reach {endpoint}: .*not known.*; check s3_endpoint"):
        await _open("s3://bucket/x", s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b")


async def test_tls_with_a_server_that_speaks_none_fails_saying_so(s3_server: S3Server) -> None:
    settings = {**s3_server.settings, "s3_endpoint": s3_server.endpoint.replace("http:", "https:")}
    with pytest.raises(StoreUnavailable, match="no TLS with https://"):
        await _open("s3://bucket/x", **settings)


async def test_tls_that_breaks_with_an_alert_may_be_tried_again() -> None:
    """A server that is being restarted sends such an alert, and so may its load balancer."""

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(bytes.fromhex("15030300020250"))  # fatal: internal_error
        await hang_up(writer)

    async with listening(alert) as plain:
        endpoint = plain.replace("http:", "https:")
        with pytest.raises(StoreUnavailable, match=f"no TLS with {endpoint}"):
            await _open("s3://bucket/x", s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b")


@pytest.mark.parametrize("wrapped", [False, True], ids=["as ssl raises it", "as aiohttp does"])
def test_a_certificate_that_is_not_trusted_is_refused(wrapped: bool) -> None:
    cause: Exception = ssl.SSLCertVerificationError("self-signed certificate")
    if wrapped:
        cause = aiohttp.ClientConnectorCertificateError(ConnectionKey("h", 443, True, True, None, None, None), cause)
    error = aws.SSLError(endpoint_url="https://h", error=cause)
    refused = unanswered("s3://bucket: list", "https://h", error)
    assert isinstance(refused, StoreRefused)
    assert "no TLS with https://h" in str(refused)
    assert "self-signed certificate" in str(refused)


@pytest.mark.servers
@pytest.mark.slow
async def test_bucket_settings_that_delete_or_keep_too_much_are_warned_of(minio: S3Server) -> None:
    bucket = await minio.new_bucket()
    async with open_store(f"s3://{bucket}/state", Settings.load(**minio.settings)) as store:
        assert not await store.backend.warnings()
        client = store.backend._client  # type: ignore[attr-defined]

        async def rules(*given: dict[str, object]) -> Sequence[str]:
            whole = [{"ID": f"r{n}", "Status": "Enabled"} | rule for n, rule in enumerate(given)]
            await client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": whole})
            return await store.backend.warnings()

        elsewhere = {"Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}
        assert await rules(elsewhere) == []
        (warning,) = await rules(elsewhere, {"Filter": {"Prefix": ""}, "Expiration": {"Days": 30}})
        assert warning.startswith("lifecycle rule 'r1' deletes objects by age")
        enabled = {"Status": "Enabled"}
        await client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=enabled)
        (warning,) = await rules(elsewhere)
        assert warning.startswith("the bucket keeps all versions: each host rewrites its heartbeat")
        expires = {"Filter": {"Prefix": "state/"}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}
        assert await rules(expires) == []
