"""Handlers that cannot work are refused at the start, by name, with what is allowed."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pytest
from pydantic import BaseModel

from actorproc import Capture, JsonRows, RecordHandler
from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.checks import checked_handler


class Base(PartitionHandler):
    async def process(self, batch: Any, ctx: Any) -> None:
        pass


class Renamed(Base):
    class Model(BaseModel):
        bound: int = 1

    options = Model


class CamelCase(Base):
    outputSchema = "n long"  # noqa: N815


class Mixin:
    """Of another library."""

    def onError(self) -> None:  # noqa: N802
        pass

    @property
    def Opened(self) -> None:  # noqa: N802
        raise RuntimeError


class OwnNames(Base, Mixin):
    options = ("a", "b")  # no model: something of its own
    _shared = _process = None
    OUTPUT_SCHEMA = output_schema = "n long"
    Process = subprocess.Popen

    class Shared(NamedTuple):
        pool: int


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


class SharedWithoutContext(Base):
    @classmethod
    async def shared(cls, options: Any) -> Any:
        yield 1


class SharedAwaited(Base):
    @classmethod
    async def shared(cls, options: Any) -> Any:  # type: ignore[override]
        return 1


class SharedNotAsync(Base):
    @classmethod
    @contextmanager
    def shared(cls, options: Any) -> Iterator[Any]:  # type: ignore[override]
        yield 1


class SharedWithoutOptions(Base):
    @classmethod
    @asynccontextmanager
    async def shared(cls) -> AsyncIterator[Any]:  # type: ignore[override]
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
        (StreamingProcess, r"StreamingProcess\.process has a yield in it.*ctx\.emit\(record, row\)"),
        (YieldingProcess, r"YieldingProcess\.process has a yield in it"),
        (ShortProcess, r"process takes \(self, batch: 'Any'\) .*; it must take \(self, batch, ctx\)"),
        (ShortRecord, r"process_record takes \(self, record: 'Any'\) .*; it must take \(self, record, ctx\)"),
        (ShortOnError, r"on_error takes .*; it must take \(self, error, failed, attempt\)"),
        (AsyncOnError, r"on_error must be a plain def"),
        (ShortOpened, r"opened takes \(self\) .*; it must take \(self, ctx\)"),
        (ShortClosing, r"closing takes .*; it must take \(self, ctx, reason\)"),
        (PlainOpened, r"opened must be async def opened\(self, ctx\)$"),
        (NeedsArguments, r"NeedsArguments\.__init__ takes \(url: 'str'\).*without arguments.*ctx\.options"),
        (SharedOfInstance, r"shared must be a class method: write @classmethod, then @asynccontextmanager"),
        (
            SharedWithoutContext,
            r"shared must be an async context manager: write @classmethod, then @asynccontextmanager",
        ),
        (SharedAwaited, r"shared must be an async context manager"),
        (SharedNotAsync, r"shared must be an async context manager"),
        (SharedWithoutOptions, r"shared takes .* above async def shared\(cls, options\)"),
        (SchemaOfInstance, r"schema_for must be a class method"),
        (Renamed, r"^Renamed\.options is not looked at: its name must be Options$"),
        (CamelCase, r"^CamelCase\.outputSchema is not looked at: its name must be output_schema$"),
        (DictOptions, r"DictOptions\.Options must be a pydantic model.*<class 'dict'>"),
        (DataclassOptions, r"DataclassOptions\.Options must be a pydantic model"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name_and_what_is_allowed(handler: type[Any], message: str) -> None:
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


@pytest.mark.parametrize("handler", [Base, OwnNames, Unusual, JsonRows, Capture])
def test_whatever_can_be_called_as_it_is_called_is_allowed(handler: type[Any]) -> None:
    assert checked_handler(handler) is handler
