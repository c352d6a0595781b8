"""Addresses and tokens of the HTTP server."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorproc.config.settings import Settings
from actorproc.errors import SettingsError, UsageError
from actorproc.server.access import Tokens, check_exposure, parse_address


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


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:http", "127.0.0.1:70000"])
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
    with pytest.raises(SettingsError, match=r"http_token = @t: the file cannot be read"):
        Tokens(Settings(http_token="@t"))
    for given in ("@t", "short"):
        Path("t").write_text("short")
        with pytest.raises(SettingsError, match="less than 16"):
            Tokens(Settings(http_token=given))
    Path("t").write_text("long enough to be one")
    assert Tokens(Settings(http_token="@t")).write == "long enough to be one"
