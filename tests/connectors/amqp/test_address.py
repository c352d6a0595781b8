"""URLs and options of AMQP sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorproc.errors import UsageError
from actorproc.sources import open_source

pytest.importorskip("proton", reason="python-qpid-proton is not installed")

from actorproc.connectors.amqp import AmqpSource
from actorproc.connectors.amqp.address import PASSWORD, parse_address


@pytest.mark.parametrize(
    ("path", "queues"),
    [
        ("orders", ["orders"]),
        ("orders,returns", ["orders", "returns"]),
        ("orders.{0..2}", ["orders.0", "orders.1", "orders.2"]),
        ("o{08..10}x,p", ["o08x", "o09x", "o10x", "p"]),
        ("%2Fqueues%2Fo", ["/queues/o"]),
    ],
)
async def test_the_path_names_the_queues(path: str, queues: list[str]) -> None:
    assert list(await AmqpSource(f"amqps://me@broker/{path}").partitions()) == queues


def test_the_scheme_says_whether_tls_is_used_and_on_which_port() -> None:
    tls, plain = parse_address("amqps://me@broker/q", {}), parse_address("amqp://broker:1234/q", {})
    assert (tls.tls, tls.port, tls.user) == (True, 5671, "me")
    assert (plain.tls, plain.port, plain.user) == (False, 1234, None)


def test_the_password_comes_from_environment_or_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PASSWORD, "from-environment")
    (tmp_path / "password").write_text("from-file\n")
    plain, filed = AmqpSource("amqp://me@h/q"), AmqpSource("amqp://me@h/q", {"password": f"@{tmp_path}/password"})
    assert (plain._address.password, filed._address.password) == ("from-environment", "from-file")
    assert "from-" not in f"{plain} {plain._address!r} {filed._address!r}"


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("amqps://me:secret@broker/q", {}, "no password in a URL; set AMQP_PASSWORD"),
        ("amqps://broker", {}, "write amqps://USER@HOST"),
        ("amqps://broker/q.{3..1}", {}, r"\{3..1\} must count up"),
        ("amqps://broker:port/q", {}, "Port could not be cast"),
        ("amqps://broker/q", {"pasword": "x"}, "no source option 'pasword'; did you mean password"),
        ("amqps://broker/q", {"identity": "hash"}, "allowed are message-id, annotation:NAME"),
        ("amqps://broker/q", {"address": "/queues/"}, "address needs {} for the queue's name"),
        ("amqps://broker/q", {"ca_file": "/nowhere"}, "ca_file, certificate_file or key_file cannot be read"),
    ],
)
def test_a_wrong_url_or_option_is_refused_by_name(url: str, options: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error) as raised:
        AmqpSource(url, options)
    assert "secret" not in str(raised.value)


async def test_a_queue_begins_at_its_oldest_message_only() -> None:
    source = open_source("amqps://me@broker/q")
    assert await source.start("q", "earliest") == "0"
    with pytest.raises(UsageError, match="always read from its oldest message on"):
        await source.start("q", "latest")
