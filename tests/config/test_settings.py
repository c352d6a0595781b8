"""Settings and options: where they are read from, and the errors for wrong ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from actorproc.config.settings import Settings
from actorproc.errors import SettingsError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.context import PartitionContext
from actorproc.handler.options import load_options
from actorproc.processor import Processor
from actorproc.records import Batch


def test_durations_and_sizes_may_carry_a_unit() -> None:
    settings = Settings.load(
        commit_interval="500ms", lease_renew_interval="0.5m", lease_expiration_interval="1h", commit_bytes="1MiB"
    )
    assert (settings.commit_interval, settings.lease_renew_interval, settings.commit_bytes) == (0.5, 30.0, 2**20)


def test_a_keyword_beats_the_environment_and_the_environment_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text('commit_interval = "1s"\npoll_interval = "2s"\nmax_attempts = 7\n[options]\nx = 1\n')
    monkeypatch.setenv("ACTORPROC_POLL_INTERVAL", "3s")
    monkeypatch.setenv("ACTORPROC_MAX_ATTEMPTS", "8")
    settings = Settings.load(file, max_attempts=9)
    assert (settings.commit_interval, settings.poll_interval, settings.max_attempts) == (1.0, 3.0, 9)


def test_the_constructor_reads_neither_environment_nor_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "actorproc.toml").write_text("commit_rows = 5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTORPROC_COMMIT_INTERVAL", "77")
    settings = Settings(max_attempts=9)
    assert (settings.commit_interval, settings.commit_rows, settings.max_attempts) == (5.0, 1_000_000, 9)


def test_actorproc_toml_of_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "actorproc.toml").write_text("commit_rows = 5")
    monkeypatch.chdir(tmp_path)
    assert Settings.load().commit_rows == 5


def test_a_file_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "actorproc.toml").write_text('[options]\ncity = "Zürich"\n', encoding="utf-8")
    read = "from actorproc.config.loading import read_config; print(ascii(read_config(None)['options']['city']))"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = subprocess.check_output([sys.executable, "-c", read], cwd=tmp_path, env={**os.environ, **locale}, text=True)
    assert found.strip() == ascii("Zürich")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"commit_interval": "5 parsecs"},
            "commit_interval = '5 parsecs': write seconds, or a number with ms, s, m, h or d",
        ),
        ({"commit_interval": "-1"}, "commit_interval = '-1': must be greater than 0"),
        ({"commit_interval": "1e999"}, "commit_interval = '1e999': the number is too large"),
        ({"commit_interval": "0s"}, "commit_interval = '0s': must be greater than 0"),
        ({"commit_interval": 0}, "commit_interval = 0: must be greater than 0"),
        ({"commit_intervall": 5}, "commit_intervall = 5: there is no such setting"),
        ({"delivery": "exactly-once"}, "delivery = 'exactly-once': must be 'at-least-once' or 'at-most-once'"),
        ({"lease_expiration_interval": 26}, "must be more than twice lease_renew_interval (13 s)"),
        (
            {"lease_acquire_interval": "61s"},
            "lease_acquire_interval (61 s) must be at most lease_expiration_interval (60 s), ",
        ),
        (
            {"max_batch_bytes": 33_554_433, "read_ahead_bytes": "32MiB"},
            "max_batch_bytes (33554433 bytes) must be at most read_ahead_bytes (33554432 bytes), ",
        ),
        (
            {"max_batch_bytes": "1GiB"},
            "max_batch_bytes (1073741824 bytes) must be at most read_ahead_bytes (268435456 bytes), ",
        ),
        ({"auto_commit": "maybe"}, "auto_commit = 'maybe': must be a valid boolean"),
        ({"commit_interval": [1]}, "commit_interval: must be a valid number"),
        ({"_env_file": "x"}, "_env_file = 'x': there is no such setting"),
        ({"retry_backoff": 31}, "retry_backoff (31 s) must be at most retry_backoff_max (30 s), "),
        ({"restart_backoff_max": "100ms"}, "restart_backoff (0.5 s) must be at most restart_backoff_max (0.1 s), "),
        (
            {"delivery": "at-most-once", "auto_commit": False},
            "auto_commit = false cannot go with delivery = 'at-most-once'",
        ),
        ({"commit_bytes": "-5MiB"}, "commit_bytes = '-5MiB': must be greater than 0"),
        ({"commit_bytes": "9" * 400}, "the number is too large"),
        (
            {"commit_rows": 10**20},
            "commit_rows = 100000000000000000000: must be less than or equal to 1000000000000000",
        ),
        ({"commit_bytes": "many"}, "commit_bytes = 'many': write bytes, or a number with kB"),
    ],
)
def test_a_wrong_setting_is_named_with_value_and_limit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load(**given)
    assert message in str(caught.value)


def test_ordered_settings_may_be_equal() -> None:
    Settings.load(
        lease_acquire_interval=60, max_batch_bytes="256MiB", retry_backoff=30, restart_backoff=60
    )  # of the defaults


def test_a_table_other_than_options_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[settings]\ncommit_interval = "1s"\n')
    with pytest.raises(SettingsError, match=r"a\.toml: settings: there is no such setting"):
        Settings.load(tmp_path / "a.toml")


def test_an_unknown_setting_is_named_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "actorproc.toml").write_text('comit_rows = 1\nnope = "x"\n')
    with pytest.raises(SettingsError) as caught:
        Settings.load(nope="y")
    misspelt, unknown = str(caught.value).splitlines()
    assert misspelt == "actorproc.toml: comit_rows = 1: there is no such setting; did you mean commit_rows?"
    assert unknown.startswith("nope = 'y': there is no such setting. (Source, container and name are given on")


def test_a_wrong_value_is_named_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    file.write_text('commit_interval = "fast"\ncommit_rows = 0\nmax_attempts = 0\n')
    monkeypatch.setenv("ACTORPROC_COMMIT_ROWS", "-1")
    monkeypatch.setenv("ACTORPROC_MAX_ATTEMPTS", "-1")
    with pytest.raises(SettingsError) as caught:
        Settings.load(file, max_attempts=-2)
    assert [line.partition(" = ")[0] for line in sorted(str(caught.value).splitlines())] == [
        f"{file}: commit_interval",
        "ACTORPROC_COMMIT_ROWS in the environment: commit_rows",
        "max_attempts",
    ]


def test_variables_that_are_no_settings_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOURCE", "CONTAINER", "NAME", "LOG_LEVEL", "SERVICE_HOST", "OPTION_COMMIT_ROWS"):
        monkeypatch.setenv(f"ACTORPROC_{name}", "x")
    assert Settings.load() == Settings()


def test_a_secret_key_is_not_shown() -> None:
    assert "hush" not in repr(Settings.load(s3_access_key="me", s3_secret_key="hush"))


def test_a_missing_or_malformed_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        Settings.load(tmp_path / "nowhere.toml")
    (tmp_path / "torn.toml").write_text("commit_rows = ")
    with pytest.raises(SettingsError, match=r"torn\.toml"):
        Settings.load(tmp_path / "torn.toml")


class WithOptions(PartitionHandler):
    class Options(BaseModel):
        table: str
        limit: int = Field(10, gt=0)

    async def process(self, batch: Batch, ctx: PartitionContext) -> None: ...


def test_options_come_from_keywords_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[options]\ntable = "t"\nlimit = 1\n')
    options = load_options(WithOptions, {}, file, {"ACTORPROC_OPTION_LIMIT": "2"})
    assert options == WithOptions.Options(table="t", limit=2)
    assert load_options(WithOptions, {"limit": "3"}, file, {}) == WithOptions.Options(table="t", limit=3)


def test_options_go_by_field_names_not_aliases() -> None:
    class Aliased(WithOptions):
        class Options(BaseModel):
            minutes: int = Field(alias="mins")
            limit: int = Field(10, validation_alias="most")

    options: Any = load_options(Aliased, {"minutes": "5", "limit": 6}, None, {})
    assert (options.minutes, options.limit) == (5, 6)
    with pytest.raises(SettingsError, match=r"minutes = 'x'"):
        load_options(Aliased, {"minutes": "x"}, None, {})
    with pytest.raises(SettingsError, match="minutes: is missing"):
        load_options(Aliased, {}, None, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "t", "limt": 3}, "WithOptions has no option limt; it has: table, limit"),
        ({"table": "t", "limit": "0"}, "limit = '0': must be greater than 0"),
        (
            {},
            "ACTORPROC_OPTION_<NAME>, or NAME = VALUE below [options] in the file):\ntable: is missing",
        ),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_options(WithOptions, given, None, {})
    assert message in str(caught.value)


def test_a_variable_for_another_handler_is_ignored() -> None:
    environment = {"ACTORPROC_OPTION_HOT": "1"}
    assert load_options(WithOptions, {"table": "t"}, None, environment) == WithOptions.Options(table="t")


def test_a_wrong_option_is_named_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[options]\ntable = "t"\nlimit = 0\n')
    for given, environment, place in (
        ({}, {}, f"{file}: limit = 0: "),
        ({}, {"ACTORPROC_OPTION_LIMIT": "-1"}, "ACTORPROC_OPTION_LIMIT in the environment: limit = '-1': "),
        ({"limit": "-2"}, {"ACTORPROC_OPTION_LIMIT": "-1"}, "limit = '-2': "),
    ):
        with pytest.raises(SettingsError) as caught:
            load_options(WithOptions, given, file, environment)
        assert str(caught.value).splitlines()[1].startswith(place)


@pytest.mark.parametrize("text", ["options = 3", "[[options]]\nlimit = 1"])
def test_options_must_be_a_table(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"options must be a table: a line \[options\], and below it name = value"):
        Settings.load(file)


def test_a_processor_with_given_settings_reads_options_from_keywords_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "actorproc.toml").write_text("[options]\nlimit = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTORPROC_OPTION_LIMIT", "2")
    places: dict[str, Any] = {"source": "log", "container": "state", "settings": Settings(), "options": {"table": "t"}}
    assert Processor(WithOptions, **places).options == WithOptions.Options(table="t", limit=10)


def test_an_unknown_option_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[options]\ntable = "t"\nlimt = 1\n')
    with pytest.raises(SettingsError) as caught:
        load_options(WithOptions, {"tabel": "u"}, file, {})
    says = "WithOptions has no option limt, tabel; it has: table, limit; did you mean limit?"
    assert str(caught.value) == f"{file}: {says}"


class Database(BaseModel):
    host: str
    port: int = 1
    word: str = ""


class WithSecrets(WithOptions):
    class Options(BaseModel):
        table: str
        password: str = Field("", max_length=1)
        pin: SecretStr | None = Field(None, max_length=1)
        words: str = Field("", max_length=1, repr=False)
        database: Database | None = None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"password": "hunter2"}, "table: is missing"),
        ({"table": "t", "password": "hunter2"}, "password: String should have at most 1 character"),
        ({"table": "t", "pin": "hunter2"}, "pin: "),
        ({"table": "t", "words": "hunter2"}, "words: "),
        ({"table": "t", "database": {"word": "hunter2"}}, "database.host: is missing"),
        ({"table": "t", "database": {"host": 1, "port": "x", "word": "hunter2"}}, "database.port = 'x': must be"),
        ({"table": "t", "database": ["hunter2"]}, "database: must be"),
    ],
)
def test_errors_about_options_show_no_secrets(given: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_options(WithSecrets, given, None, {})
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    n: int = 0
    code: SecretStr | None = Field(None, max_length=1)
    word: str = Field("", max_length=1, repr=False)


class WithLists(WithOptions):
    class Options(BaseModel):
        names: list[str] = []
        pair: tuple[int, str] = (0, "")
        few: frozenset[int] = frozenset()
        row: Sequence[int] = ()
        deep: dict[str, int] = {}
        inner: Inner | None = None
        inners: list[Inner] = []
        text: str = ""
        either: str | list[str] = ""
        headers: dict[str, str] | str = Field({}, max_length=1)
        codes: list[SecretStr] = []


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("names", '["a","b"]', ["a", "b"]),
        ("names", " [] ", []),
        ("pair", '[1, "x"]', (1, "x")),
        ("few", "[1, 2, 1]", frozenset({1, 2})),
        ("row", "[1, 2]", [1, 2]),
        ("deep", '{"a": 1}', {"a": 1}),
        ("inner", '{"n": 3}', Inner(n=3)),
        ("inners", '[{"n": 3}]', [Inner(n=3)]),
        ("text", '["a"]', '["a"]'),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("either", '["a"]', '["a"]'),
    ],
)
def test_text_for_a_list_or_object_is_parsed_as_json(name: str, text: str, value: object) -> None:
    assert getattr(load_options(WithLists, {name: text}, None, {}), name) == value
    variable = {f"ACTORPROC_OPTION_{name.upper()}": text}
    assert getattr(load_options(WithLists, None, None, variable), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "names",
            "a,b",
            """names = 'a,b': must be a valid list; write a list as JSON""",
        ),
        (
            "names",
            "[a]",
            """names = '[a]': must be a valid list; write a list as JSON""",
        ),
        ("names", "3", """names = '3': must be a valid list; write a list as JSON"""),
        ("names", '{"a": 1}', "names: must be a valid list"),
        ("names", "[" * 100_000, "must be a valid list; write a list as JSON"),
        ("names", "[1]", "names.0 = 1: must be a valid string"),
        ("deep", "a=1", """deep: must be a valid dictionary; write an object as JSON"""),
        ("deep", '{"a": "x"}', "deep.a = 'x': must be a valid integer"),
        ("inner", '{"m": 3}', "inner.m = 3: Extra inputs are not permitted"),
    ],
)
def test_text_that_is_not_the_expected_json_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_options(WithLists, {name: text}, None, {})
    with pytest.raises(SettingsError, match=re.escape(f"ACTORPROC_OPTION_{name.upper()} in the environment: {name}")):
        load_options(WithLists, None, None, {f"ACTORPROC_OPTION_{name.upper()}": text})


def test_only_the_wrong_option_is_named_beside_one_in_json() -> None:
    with pytest.raises(SettingsError) as caught:
        load_options(WithLists, {"names": '["a"]', "few": "1"}, None, {})
    assert str(caught.value).splitlines()[1:] == ["few = '1': must be a valid frozenset; write a list as JSON"]


@pytest.mark.parametrize(
    "given",
    [
        {"inner": '{"code": "hunter2"}'},
        {"inner": '{"word": "hunter2"}'},
        {"inner": '{"code": "hunter2"'},
        {"inner": "code=hunter2"},
        {"inners": '[{"word": "hunter2"}]'},
        {"inners": '[{"word": "hunter2"]'},
        {"inner": '["hunter2"]'},
        {"names": '{"word": "hunter2"}'},
        {"headers": '{"auth": "hunter2"'},
        {"codes": '["hunter2"'},
    ],
)
def test_errors_about_json_show_no_secrets(given: dict[str, object]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_options(WithLists, given, None, {})
    assert next(iter(given)) in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_value_of_a_misspelt_secret_key_is_not_shown() -> None:
    with pytest.raises(SettingsError, match="s3_secret_ky: there is no such setting; did you mean") as caught:
        Settings.load(s3_secret_ky="hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ['s3_pass = "hunter2"', 's3_password = "hunter2"', "s3_secret_kye = 'hunter2'"])
def test_the_value_of_an_unknown_secret_setting_is_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        Settings.load(tmp_path / "a.toml")
    assert "hunter2" not in str(caught.value)


def test_a_lower_case_variable_is_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("actorproc_commit_rows", "-1")
    with pytest.raises(SettingsError, match=r"^actorproc_commit_rows in the environment: commit_rows = '-1'"):
        Settings.load()
