"""The test kit on the stranger's source, store and decoder."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from actorproc import Processor
from actorproc.cli.common import shown_settings
from actorproc.codecs import open_decoder
from actorproc.config.settings import Settings
from actorproc.errors import UsageError
from actorproc.handler.decoder import columns_of, values_of
from actorproc.handlers import Capture
from actorproc.retention.readers import Reader
from actorproc.runtime.clock import SYSTEM
from actorproc.sinks.opening import make_sink
from actorproc.sources import open_source
from actorproc.spark.hadoop import is_local, spark_url, store_url
from actorproc.spark.options import settings_as_options
from actorproc.spark.session_options import redacted, session_options
from actorproc.spi import Guarantee, Sink
from actorproc.storage.store import Store
from actorproc.stores import open_store
from actorproc.testing import check_sink, check_source
from tests.plugin.packages import installed_package
from tests.stores.test_contract import *  # noqa: F403  # runs them all on the stranger's store

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
async def store(installed: None, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(f"acmedb://{tmp_path}/store.db", Settings.load()) as opened:
        yield opened


@pytest.fixture
def racers() -> int:
    return 8


async def test_a_strangers_source_keeps_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"one\ntwo\nthree\n")

    async def add() -> None:
        file.write_bytes(file.read_bytes() + b"four\n")

    settings = Settings.load(source_options={"poll": 0.01})
    checked = await check_source(lambda: open_source(f"acme://{tmp_path}", settings=settings), add=add)
    assert checked.records == {"a": 4}
    assert all("lines have no time" in rule for rule in checked.not_checked)


async def test_a_strangers_sink_keeps_its_guarantee(tmp_path: Path) -> None:
    def make() -> Sink:
        options = {"url": f"acmedb:{tmp_path}/rows.db", "table": "kept", "most_rows": "1000"}
        sink = make_sink("acme", options, processor="Took", clock=SYSTEM)
        assert isinstance(sink, Sink)
        return sink

    async def rows() -> Sequence[int]:
        with sqlite3.connect(tmp_path / "rows.db") as connection:
            return [int(n) for (n,) in connection.execute("SELECT n FROM kept")]

    checked = await check_sink(make, rows)
    assert (checked.guarantee, checked.repeated) == (Guarantee.EXACTLY_ONCE, 0)


def test_a_strangers_decoder_makes_objects_and_columns() -> None:
    class Line(msgspec.Struct):
        level: str
        took: float

    decoder = open_decoder(Settings.load(decode="logfmt"))
    assert values_of(decoder, Line).parse(b"level=info took=12.5") == Line("info", 12.5)
    with pytest.raises(ValueError, match="took"):
        values_of(decoder, Line).parse(b"level=info took=slow")
    values = pa.array([b"level=a took=1", b"level=b took=x", None, b"level=c"], pa.binary())
    rows, errors = columns_of(decoder, "level string, took double").parse(values, pa.array([1, 2, 5, 9], pa.int64()))
    assert rows.to_pylist() == [
        {"level": "a", "took": 1.0, "_sequence": 1},
        {"level": "c", "took": None, "_sequence": 9},
    ]
    assert sorted(errors) == [2, 5]


BROKEN = {
    "missing": "import nothing_of_this_name",
    "failing": "raise RuntimeError('it fails')",
    "ending": "import sys\nsys.exit(3)",
    "malformed": "def",
    "nameless": "",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_module_that_cannot_be_imported_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    points = {"stores": {"broken": f"{how}_module:Store"}}
    site = installed_package(tmp_path / "site", "broken-plugin", points, **{f"{how}_module": BROKEN[how]})
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(UsageError, match="broken of package broken-plugin: "):
        open_store("broken://x")


LAZY = """
from actorproc.spi import Backend
def make(*args, **options):
    import nothing_of_this_name
class Store(Backend):
    of_url = make
"""


@pytest.mark.parametrize(
    "open_it",
    [
        lambda: open_source("lazy://x"),
        lambda: open_store("lazydb://x"),
        lambda: open_decoder(Settings.load(decode="lazy")),
    ],
)
def test_a_library_that_a_plugin_needs_is_named_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_it: Any
) -> None:
    points = {"sources": {"lazy": "lazy_one:make"}, "stores": {"lazydb": "lazy_one:Store"}}
    points |= {"decoders": {"lazy": "lazy_one:make"}}
    monkeypatch.syspath_prepend(str(installed_package(tmp_path / "site", "lazy-one", points, lazy_one=LAZY)))
    with pytest.raises(UsageError, match=r"nothing_of_this_name.*: install what the package lazy-one needs"):
        open_it()


TWO_STORES = """
from pydantic import BaseModel
from actorproc.spi import Backend
asked = []
class OneOptions(BaseModel):
    one_a: int = 0
    one_both: int = 0
class TwoOptions(BaseModel):
    one_both: int = 0
    two_b: str = ""
class One(Backend):
    options = OneOptions
    @classmethod
    def of_url(cls, url, options, *, settings, clock):
        asked.append(options.model_dump(exclude_unset=True))
        from actorproc.stores.memory import MemoryStore
        return MemoryStore()
class Two(One):
    options = TwoOptions
"""


def test_a_log_gets_the_options_of_the_container_that_its_own_store_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"stores": {"one": "two_stores:One", "two": "two_stores:Two"}}
    site = installed_package(tmp_path / "site", "two-stores", points, two_stores=TWO_STORES)
    monkeypatch.syspath_prepend(str(site))
    settings = Settings.load(one_a=1, one_both="2", source_options={"two_b": "@@3"})
    open_store("one://x", settings)
    open_source("two://x", settings=settings)
    open_source("actorproc+two://x/Name", settings=settings)
    asked = import_module("two_stores").asked
    assert asked == [{"one_a": 1, "one_both": 2}] + [{"one_both": 2, "two_b": "@3"}] * 2


@pytest.mark.parametrize(
    ("open_it", "message"),
    [
        (lambda: open_source("notsource://x"), "made 7, not a Source"),
        (lambda: open_store("notstore://x"), "is no subclass of Backend"),
        (lambda: open_decoder(Settings.load(decode="notdecoder")), "made 7, not a Decoder"),
    ],
)
def test_a_plugin_of_the_wrong_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_it: Any, message: str
) -> None:
    points = {
        "sources": {"notsource": "wrong_kind:make"},
        "stores": {"notstore": "wrong_kind:make"},
        "decoders": {"notdecoder": "wrong_kind:make"},
    }
    code = "def make(*args, **options):\n    return 7"
    monkeypatch.syspath_prepend(str(installed_package(tmp_path / "site", "wrong-kind", points, wrong_kind=code)))
    with pytest.raises(UsageError, match=message):
        open_it()


CLOUD = """
from pydantic import BaseModel, Field
from actorproc.spi import Backend, Hadoop
class Options(BaseModel):
    cl_account: str
    cl_account_key: str | None = Field(None, repr=False)
    cl_container: str = ""
class Store(Backend):
    options, spellings = Options, ("clfs", "wasb")
    get = put = put_if_absent = put_if_match = list = delete = None
    def __init__(self, url, options):
        self.url = url
        self.hadoop_options = {f"fs.azure.account.key.{options.cl_account}": options.cl_account_key}
    @classmethod
    def of_url(cls, url, options, *, settings, clock):
        return cls(url, options)
    @property
    def hadoop(self):
        url, jars = self.url.replace("cl://", "clfs://"), ["org.example:azure:{hadoop}"]
        return Hadoop(url, self.hadoop_options, "com.example.Azure", jars, ["org.example:all"])
Store.__abstractmethods__ = frozenset()
"""


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of another cloud, beside one that cannot be imported."""
    points = {"stores": {"cl": "cloud_store:Store", "aaa": "no_module_of_this_name:Store"}}
    monkeypatch.syspath_prepend(str(installed_package(tmp_path / "site", "cloud-store", points, cloud_store=CLOUD)))


def test_spark_gets_url_options_and_jars_from_a_strangers_store(cloud: None) -> None:
    settings = Settings.load(cl_account="mine", cl_account_key="hunter2")
    assert spark_url("cl://files/x", settings) == spark_url("wasb://files/x", settings) == "clfs://files/x"
    assert store_url("clfs://files/x", settings) == Reader.spark("table", "clfs://files/x").url == "cl://files/x"
    assert not is_local("clfs://files/x", settings)
    assert is_local("file:/x", settings)
    session = session_options("local", app="x", urls=["clfs://files/x", "clfs://files/y"], settings=settings)
    assert session["spark.hadoop.fs.azure.account.key.mine"] == "hunter2"
    assert session["spark.jars.packages"].startswith("org.example:azure:3.")
    assert session["spark.jars.excludes"] == "org.example:all"
    assert "hunter2" not in str(redacted(session))
    assert {"cl_account": "mine", "cl_account_key": "hunter2"}.items() <= settings_as_options(settings).items()


def test_an_option_that_a_strangers_store_needs_is_asked_for(cloud: None) -> None:
    with pytest.raises(UsageError, match="store cl://files: store option cl_account: is missing"):
        open_store("cl://files", Settings.load())
    with pytest.raises(UsageError, match="cl:// has the settings cl_account, cl_account_key"):
        open_store("cl://me:hunter2@files", Settings.load())


def test_processor_takes_settings_of_a_strangers_store_as_keywords(cloud: None) -> None:
    given: dict[str, Any] = {"cl_account": "mine", "cl_container": "like an argument"}
    processor = Processor(Capture, source="log", container="cl://files", name="N", **given)
    assert processor.settings.store_options == given
    with pytest.raises(UsageError, match="cl_acount: there is no such setting; did you mean cl_account"):
        Processor(Capture, source="log", container="cl://files", name="N", cl_acount="mine")
    assert shown_settings(["cl_account=mine", "cl_account_key=hunter2", "commit_rows=1"]) == [
        "--set",
        "cl_account=mine",
    ]
