"""Arguments that cannot work are refused, before anything is touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actorproc import (
    Batch,
    Capture,
    JsonRows,
    PartitionContext,
    PartitionHandler,
    Processor,
    Producer,
    Record,
    RecordHandler,
    errors,
)
from actorproc.config.settings import Settings
from actorproc.handler.decoder import Columns, Decoder, Values
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore
from tests.processor.doubling import QUICK, Double, fed, rows


class Numbers(RecordHandler):
    output_schema = "n long"

    def process_record(self, record: Record, ctx: PartitionContext) -> dict[str, object]:
        return {"n": record.json()}


async def test_the_folder_of_a_processor_is_refused_as_a_container(tmp_path: Path) -> None:
    await Processor(Double, source=fed(), container=str(tmp_path), **QUICK).run(until_end=True)
    inside = Processor(Double, source=fed(), container=str(tmp_path / "Double"), **QUICK)
    with pytest.raises(errors.UsageError, match=rf"processor 'Double' itself; its container is file://{tmp_path}$"):
        await inside.run(until_end=True)
    assert not (tmp_path / "Double" / "Double").exists()


async def test_a_processor_does_not_begin_where_a_log_is(tmp_path: Path) -> None:
    async with Producer(str(tmp_path / "Double"), partitions=1):
        pass
    before = sorted(tmp_path.rglob("*"))
    processor = Processor(Double, source=fed(), container=str(tmp_path), **QUICK)
    where = re.escape(f"file://{tmp_path}/Double")
    with pytest.raises(errors.UsageError, match=f"at {where}, and that is a log: give another name or container"):
        await processor.run(until_end=True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("handler", [JsonRows, Capture, Numbers])
def test_ready_made_handlers_are_refused_where_only_the_handler_may_commit(handler: type[PartitionHandler]) -> None:
    options = {"output_schema": "n long"} if handler is JsonRows else {}
    with pytest.raises(errors.UsageError, match=f"auto_commit = false cannot go with {handler.__name__}"):
        Processor(handler, source=fed(), container="memory://c", options=options, auto_commit=False)


def test_a_ready_made_handler_with_its_own_process_may_commit() -> None:
    class Own(Capture):
        async def process(self, batch: Batch, ctx: PartitionContext) -> None:
            await ctx.commit()

    Processor(Own, source=fed(), container="memory://c", auto_commit=False)


@pytest.mark.parametrize("transactions", [True, False])
def test_a_forwarder_is_refused_where_nothing_is_tried_again(transactions: bool) -> None:
    kafka = pytest.importorskip("actorproc.connectors.kafka.forwarder", reason="confluent-kafka is not installed")
    arguments: dict[str, Any] = {"brokers": "127.0.0.1:1", "topic": "t", "transactions": transactions}
    with pytest.raises(errors.UsageError, match=r"'at-most-once' cannot go with KafkaForwarder.*'at-least-once'"):
        Processor(
            kafka.KafkaForwarder, source=fed(), container="memory://c", options=arguments, delivery="at-most-once"
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"handler": PartitionHandler}, "no process"),
        ({"handler": Processor}, "must subclass"),
        ({"name": "a/b"}, "processor name 'a/b'"),
        ({"host": "a b"}, "host name 'a b'"),
        ({"container": "ftp://x"}, "ftp"),
        ({"name": 7}, "name = 7: a text, or None"),
        ({"host": b"a"}, "host = b'a': a text, or None"),
        ({"container": 3}, "container = 3: the URL of a store as text, such as 's3://bucket/state', a folder"),
        ({"settings": {"commit_interval": 1}}, r"settings = {'commit_interval': 1}: Settings\(\.\.\.\), or none"),
        ({"nme": "x"}, "nme = 'x': Processor has no such argument; did you mean name"),
        ({"option": {}}, "did you mean options"),
        ({"minutes": 3}, r"minutes = 3: there is no such setting\. \(Source, container and name"),
        ({"Keyword": 1}, "Keyword = 1: there is no such setting"),
        ({"source": "kafka://x"}, "kafka"),
        ({"commit_intervall": 1}, "commit_intervall = 1: there is no such setting; did you mean commit_interval"),
        ({"options": {"x": 1}}, "no option x"),
        ({"options": ["x=1"]}, r"options = \['x=1'\]: values by name, such as {'name': value}"),
        ({"start": "yesterday"}, "start = 'yesterday'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_touched(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"handler": Double, "source": "memory://s", "container": "memory://c", **wrong}
    with pytest.raises(errors.UsageError, match=message):
        Processor(arguments.pop("handler"), **arguments)


def test_settings_and_a_file_of_settings_are_not_both_taken(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="give settings or config, not both"):
        Processor(Double, source=fed(), container=Store(MemoryStore()), settings=Settings(), config=tmp_path / "a.toml")


class Negated(Decoder):
    """Whole numbers, with the other sign."""

    def values(self, kind: Any = Any) -> Values[Any]:
        return NegatedValues()

    def columns(self, schema: pa.Schema) -> Columns:
        raise NotImplementedError


class NegatedValues(Values[int]):
    def parse(self, value: bytes | None) -> int:
        return -int(value or b"0")


class Typed(RecordHandler[int]):
    output_schema = "n long"

    def process_record(self, n: int, ctx: PartitionContext) -> tuple[int]:
        return (n,)


async def test_a_processor_takes_a_decoder_of_ones_own() -> None:
    async with Store(MemoryStore()) as store:
        await Processor(Typed, source=fed(1, 3), container=store, decoder=Negated(), **QUICK).run(until_end=True)
        assert await rows(store, "Typed") == [-2, -1, 0]


def test_a_decoder_of_another_type_is_refused() -> None:
    with pytest.raises(errors.UsageError, match=r"decoder = 'json': an object of a subclass of Decoder, or None"):
        Processor(Double, source=fed(), container="memory://c", decoder="json")  # type: ignore[arg-type]
