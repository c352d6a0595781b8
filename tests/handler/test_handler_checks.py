"""Checks of handler classes at the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from actorproc import Capture, JsonRows, RecordHandler
from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler


class Base(PartitionHandler):
    async def process(self, batch: Any, ctx: Any) -> None:
        pass


class StreamingProcess(PartitionHandler):
    async def process(self, batch: Any, ctx: Any) -> Any:
        yield {"a": 1}


class YieldingProcess(PartitionHandler):
    def process(self, batch: Any, ctx: Any) -> Any:
        yield {"a": 1}


class ShortProcess(PartitionHandler):
    async def process(self, batch: Any) -> None:  # type: ignore[override]
        pass


class ShortRecord(RecordHandler):
    def process_record(self, record: Any) -> None:  # type: ignore[override]
        pass


class ShortOnError(Base):
    def on_error(self, error: Exception) -> None:  # type: ignore[override]
        pass


class AsyncOnError(Base):
    async def on_error(self, error: Any, failed: Any, attempt: Any) -> Any:  # type: ignore[override]
        pass


class ShortOpened(Base):
    async def opened(self) -> None:  # type: ignore[override]
        pass


class ShortClosing(Base):
    async def closing(self, ctx: Any) -> None:  # type: ignore[override]
        pass


class PlainOpened(Base):
    def opened(self, ctx: Any) -> None:  # type: ignore[override]
        pass


class NeedsArguments(Base):
    def __init__(self, url: str) -> None:
        pass


class SharedOfInstance(Base):
    async def shared(self, options: Any) -> Any:  # type: ignore[override]
        yield 1


class SchemaOfInstance(Base):
    def schema_for(self, options: Any) -> str:  # type: ignore[override]
        return "a int"


class DictOptions(Base):
    Options = dict  # type: ignore[assignment]


class DataclassOptions(Base):
    @dataclass
    class Options:
        a: int = 1


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (StreamingProcess, r"StreamingProcess\.process contains a yield.*ctx\.emit\(record, row\)"),
        (YieldingProcess, r"YieldingProcess\.process contains a yield"),
        (ShortProcess, r"process must accept the arguments of process\(self, batch, ctx\)"),
        (ShortRecord, r"process_record must accept the arguments of process_record\(self, record, ctx\)"),
        (ShortOnError, r"on_error must accept the arguments of on_error\(self, error, failed, attempt\)"),
        (AsyncOnError, r"on_error must be a plain def"),
        (ShortOpened, r"opened must accept the arguments of opened\(self, ctx\)"),
        (ShortClosing, r"closing must accept the arguments of closing\(self, ctx, reason\)"),
        (PlainOpened, r"opened must be async def opened\(self, ctx\)$"),
        (NeedsArguments, r"NeedsArguments\.__init__ needs arguments.*without any.*ctx\.options"),
        (SharedOfInstance, r"shared must be a @classmethod"),
        (SchemaOfInstance, r"schema_for must be a @classmethod"),
        (DictOptions, r"DictOptions\.Options must be a subclass of pydantic.*<class 'dict'>"),
        (DataclassOptions, r"DataclassOptions\.Options must be a subclass of pydantic"),
    ],
)
def test_an_unusable_handler_is_refused_by_name(handler: type[Any], message: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=message):
        checked_handler(handler)


class Unusual(RecordHandler):
    """Allowed, if seldom written."""

    seen: ClassVar[list[Any]] = []

    def __init__(self, size: int = 1) -> None:
        pass

    @staticmethod
    def process_record(record: Any, *more: Any) -> None:
        pass

    async def opened(self, *anything: Any) -> None:
        pass

    @classmethod
    def shared(cls, options: Any) -> Any:
        return super().shared(options)

    @classmethod
    def on_error(cls, error: Any, failed: Any, attempt: Any, more: int = 1) -> None:
        pass


@pytest.mark.parametrize("handler", [Base, Unusual, JsonRows, Capture])
def test_unusual_but_callable_signatures_are_allowed(handler: type[Any]) -> None:
    assert checked_handler(handler) is handler
