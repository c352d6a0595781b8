"""`eventhubs://` and `oci-streaming://` URLs, the client's options and where they come from."""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from actorproc import Settings, plugins
from actorproc.errors import SettingsError, SourceError, UsageError
from tests.connectors.kafka.server import OCI_POOL, OCI_TOKEN, OCI_USER, PASSWORD, USER, Broker

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from actorproc.config.options import with_secrets
from actorproc.connectors.kafka import KafkaSource
from actorproc.connectors.kafka.presets import PRESETS, parse_url
from tests.connectors.kafka.topics import Topic

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVENTHUBS_CONNECTION_STRING", "OCI_STREAMING_USER", "OCI_STREAMING_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


async def partitions(url: str, **properties: Any) -> list[str]:
    """The partitions that a source with this login lists."""
    source = KafkaSource(url, properties, settings=Settings(store_patience=0.1))
    source.timeout = 3.0
    try:
        await source.open()
        return list(await source.partitions())
    finally:
        await source.close()


def test_every_scheme_that_is_opened_has_a_preset() -> None:
    schemes = plugins.names(plugins.SOURCES)
    assert {name for name in schemes if plugins.load(plugins.SOURCES, name) is KafkaSource} == PRESETS.keys()


def test_event_hubs_expands_to_the_documented_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTHUBS_CONNECTION_STRING", "Endpoint=sb://ns/;SharedAccessKey=x")
    address = parse_url("eventhubs://ns/hub1,hub2")
    assert (address.brokers, address.topics) == ("ns.servicebus.windows.net:9093", ("hub1", "hub2"))
    assert address.properties == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "$ConnectionString",
        "sasl.password": "Endpoint=sb://ns/;SharedAccessKey=x",
        "socket.keepalive.enable": True,
        "metadata.max.age.ms": 180_000,
    }


def test_event_hubs_of_another_cloud_is_named_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTHUBS_CONNECTION_STRING", "x")
    assert parse_url("eventhubs://ns.servicebus.chinacloudapi.cn/h").brokers == "ns.servicebus.chinacloudapi.cn:9093"


def test_oci_streaming_expands_to_the_documented_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCI_STREAMING_USER", "acme/oracleidentitycloudservice/me@acme.com")
    monkeypatch.setenv("OCI_STREAMING_AUTH_TOKEN", "to<ken")
    address = parse_url("oci-streaming://us-phoenix-1/events?pool=ocid1.streampool.oc1.phx.x")
    assert (address.brokers, address.topics) == ("streaming.us-phoenix-1.oci.oraclecloud.com:9092", ("events",))
    assert address.properties == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "acme/oracleidentitycloudservice/me@acme.com/ocid1.streampool.oc1.phx.x",
        "sasl.password": "to<ken",
    }


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("eventhubs://ns", r"write eventhubs://NAMESPACE/HUB"),
        ("oci-streaming://us-phoenix-1/events", r"write oci-streaming://REGION/STREAM"),
        ("oci-streaming://us-phoenix-1/events?pool=x", r"set OCI_STREAMING_USER in the environment"),
    ],
)
def test_a_missing_part_or_login_is_named(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_url(url)


async def test_event_hubs_login_is_accepted_over_tls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(broker)
    monkeypatch.setenv("EVENTHUBS_CONNECTION_STRING", PASSWORD)
    url, trust = f"eventhubs://{broker.tls_address}/{topic.name}", {"ssl.ca.location": str(broker.certificate)}
    assert await partitions(url, **trust) == [f"{topic.name}-0", f"{topic.name}-1"]
    with pytest.raises(SourceError, match="certificate verify failed"):
        await partitions(url)
    with pytest.raises(SourceError, match="Authentication failed"):
        await partitions(url, **trust, **{"sasl.password": "Endpoint=sb://other"})


async def test_oci_login_is_accepted_over_tls(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(broker)
    monkeypatch.setenv("OCI_STREAMING_USER", OCI_USER)
    monkeypatch.setenv("OCI_STREAMING_AUTH_TOKEN", OCI_TOKEN)
    url, trust = f"oci-streaming://{broker.tls_address}/{topic.name}", {"ssl.ca.location": str(broker.certificate)}
    assert len(await partitions(f"{url}?pool={OCI_POOL}", **trust)) == 2
    with pytest.raises(SourceError, match="Authentication failed"):
        await partitions(f"{url}?pool=another", **trust)


class UnsignedCredential:
    """Replaces azure-identity's credential: the broker of the tests accepts unsigned tokens."""

    scopes: list[str]

    def __init__(self) -> None:
        type(self).scopes = []

    def get_token(self, scope: str) -> Any:
        self.scopes.append(scope)
        now = int(time.time())
        claims = {"sub": "me", "iat": now, "exp": now + 3_600}
        parts = (
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "none"}, claims)
        )
        return SimpleNamespace(token=f"{'.'.join(parts)}.", expires_on=now + 3_600)


async def test_without_a_connection_string_event_hubs_takes_an_entra_token(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = pytest.importorskip("azure.identity", reason="azure-identity is not installed")
    monkeypatch.setattr(identity, "DefaultAzureCredential", UnsignedCredential)
    topic = Topic(broker)
    url = f"eventhubs://{broker.token_address}/{topic.name}"
    assert len(await partitions(url, **{"security.protocol": "SASL_PLAINTEXT"})) == 2
    assert set(UnsignedCredential.scopes) == {"https://127.0.0.1/.default"}


async def test_a_login_without_a_token_is_refused_in_the_words_of_entra(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity", reason="azure-identity is not installed")
    monkeypatch.setattr(identity, "DefaultAzureCredential", identity.EnvironmentCredential)
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        SourceError, match=r"Entra gave no token for ns\.servicebus\.windows\.net: Environment.*`az login`"
    ):
        await partitions("eventhubs://ns/hub")


def test_without_azure_identity_the_error_names_both_ways_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(
        UsageError, match=r"set EVENTHUBS_CONNECTION_STRING in the environment, or log in with .* Entra: install"
    ):
        parse_url("eventhubs://ns/hub")


def test_a_value_with_an_at_sign_is_read_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pass\n")
    assert with_secrets("source option", {"a": f"@{secret}", "b": "@@x", "c": 5}) == {"a": "pass", "b": "@x", "c": 5}
    with pytest.raises(
        UsageError, match=r"source option sasl\.password: begins with @, and the file that it names cannot be read"
    ):
        with_secrets("source option", {"sasl.password": "@/none"})


def test_options_of_file_environment_and_keyword_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "a.toml"
    config.write_text('[source_options]\n"x" = "file"\n"y" = "file"\n"z" = "file"\n')
    monkeypatch.setenv("ACTORPROC_SOURCE_OPTIONS", '{"y": "environment", "z": "environment"}')
    settings = Settings.load(config, source_options={"z": "keyword"})
    assert settings.source_options == {"x": "file", "y": "environment", "z": "keyword"}
    monkeypatch.setenv("ACTORPROC_SOURCE_OPTIONS", "{")
    with pytest.raises(SettingsError, match=r"ACTORPROC_SOURCE_OPTIONS in the environment: .*must be JSON"):
        Settings.load(config)


async def actorproc(folder: Path, *arguments: str) -> Any:
    return await anyio.run_process([sys.executable, "-m", "actorproc", *arguments], cwd=folder, check=False)


@pytest.mark.slow
async def test_serve_status_and_replay_take_source_options_and_never_show_a_secret(
    broker: Broker, tmp_path: Path
) -> None:
    topic = Topic(broker)
    topic.send(range(10))
    topic.producer.produce(topic.name, b"no JSON", partition=0)
    assert topic.producer.flush(30) == 0
    (tmp_path / "secret").write_text(PASSWORD)
    source = ["--source", f"kafka://{broker.sasl_address}/{topic.name}", "--container", "state"]
    login = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        f"sasl.username={USER}",
        "sasl.password=@secret",
    )
    source += [part for option in login for part in ("--source-option", option)]
    handler = ["actorproc.handlers:JsonRows", "-o", "output_schema=n bigint", "--name", "Rows"]
    served = await actorproc(
        tmp_path, "--log-level", "debug", "serve", *handler, *source, "--until-end", "--workers", "2"
    )
    assert served.returncode == 0, served.stderr
    status = await actorproc(tmp_path, "status", "--name", "Rows", "--json", *source)
    assert json.loads(status.stdout)["lag"] == 0
    replayed = await actorproc(tmp_path, "dead-letters", "replay", "--name", "Rows", "--json", *source)
    assert replayed.returncode == 0, replayed.stderr
    wrong = await actorproc(tmp_path, "serve", *handler, *source, "--source-option", "isolation.levle=x")
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    assert b'No such configuration property: "isolation.levle"' in wrong.stderr
    shown = [part for done in (served, status, replayed, wrong) for part in (done.stdout, done.stderr)]
    stored = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [text for text in shown + stored if PASSWORD.encode() in text]
