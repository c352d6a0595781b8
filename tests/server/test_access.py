"""Addresses and tokens of the HTTP server."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from actorproc.config.settings import Settings
from actorproc.errors import SettingsError, UsageError
from actorproc.server.access import Tokens, check_exposure, names_loopback, parse_address


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:8600", ("127.0.0.1", 8600)),
        ("8600", ("127.0.0.1", 8600)),
        (":8600", ("0.0.0.0", 8600)),
        ("[::1]:8600", ("::1", 8600)),
    ],
)
def test_addresses_are_host_and_port(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "127.0.0.1:http", "127.0.0.1:70000", "::1:80", "[127.0.0.1]evil.com:80", "[[::1]]:80", "[]:80",
     "a@b:80", "a/b:80", "a:80:80", "[::1%lo]:80", ":", "٨٠", "127.0.0.1:٨٠", "127.0.0.1:80\n", " 127.0.0.1:80"],
)  # fmt: skip
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="write HOST:PORT"):
        parse_address(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="ACTORPROC_HTTP_TOKEN"):
        check_exposure(host, Tokens(Settings()))
    check_exposure(host, Tokens(Settings(http_token="t" * 16)))


def test_a_missing_or_short_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"http_token: begins with @, and the file that it names cannot be read"):
        Tokens(Settings(http_token="@t"))
    for given in ("@t", "short"):
        Path("t").write_text("short")
        with pytest.raises(SettingsError, match="less than 16"):
            Tokens(Settings(http_token=given))
    Path("t").write_text("long enough to be one")
    assert Tokens(Settings(http_token="@t")).write == "long enough to be one"


def hosts(*names: str) -> Headers:
    return Headers(raw=[(b"host", name.encode()) for name in names])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8600", "127.9.9.9:1", "localhost", "LocalHost:80", "[::1]", "[::1]:8600",
     "[0:0:0:0:0:0:0:1]:80"],
)  # fmt: skip
def test_requests_to_loopback_names_are_answered(host: str) -> None:
    assert names_loopback(hosts(host))


@pytest.mark.parametrize(
    "host",
    ["", ":80", "evil.com", "evil.com:8600", "[127.0.0.1].evil.com", "[127.0.0.1].evil.com:80", "[::1].evil.com",
     "[127.0.0.1]", "[::1]evil.com", "[::1]:80.evil.com", "[[::1]]", "[::1", "::1", "::1]", "evil.com]", "[localhost]",
     "127.0.0.1.evil.com", "127.0.0.1.", "localhost.", "localhost.evil.com", "evil.localhost", "127.0.0.1:80@evil.com",
     "user@127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:80:80", "127.0.0.1:800000", "127.0.0.1,evil.com",
     "127.0.0.1 evil.com", " 127.0.0.1", "127.0.0.1\n", "127.0.0.1/", "127.0.0.1#", "127.0.0.1?", "127.0.0.1%00",
     "[::1%25lo]", "[::1%lo]:80", "[::ffff:10.0.0.1]", "[::]", "0.0.0.0", "0", "2130706433", "0x7f000001", "0177.0.0.1",
     "127.1", "127.0.0.01", "١٢٧.0.0.1", "ⓛocalhost", "192.0.2.1"],
)  # fmt: skip
def test_requests_to_any_other_name_are_refused(host: str) -> None:
    assert not names_loopback(hosts(host))


@pytest.mark.parametrize("names", [[], ["127.0.0.1", "evil.com"], ["evil.com", "127.0.0.1"], ["localhost"] * 2])
def test_a_request_with_no_host_or_several_is_refused(names: list[str]) -> None:
    assert not names_loopback(hosts(*names))
