"""`ConvertedValues`: instances of a user's type from decoded Python objects."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
from pydantic import BaseModel

from actorproc.codecs.pydantic_values import ModelValues
from actorproc.errors import DecodeError
from actorproc.handler.decoder import Values

_NATIVE = (bytes, datetime, date, time, Decimal, UUID)


class ConvertedValues(Values[Any]):
    """Converts the results of `load` into `kind`: a `msgspec.Struct`, dataclass, TypedDict, pydantic model, or Any.

    Args:
        kind: of the instances.
        name: of the format, named in the reason of a value that does not decode.

    Raises:
        TypeError: there is no such conversion.
    """

    def __init__(self, kind: Any, name: str) -> None:
        self._convert = converter(kind)
        self._format = name

    @abstractmethod
    def load(self, value: bytes) -> Any:
        """Decode a value into plain Python objects. Any error says that it does not decode."""

    def load_all(self, values: pa.Array) -> list[Any]:
        """The same for a binary column without nulls. Override it if a library decodes many at once."""
        return list(map(self.load, values.to_pylist()))

    def parse(self, value: bytes | None) -> Any:
        """Decode and convert one value.

        Raises:
            DecodeError: it does not decode, or does not fit the type.
        """
        if value is None:
            raise DecodeError("the record has no value")
        try:
            loaded = self.load(value)
        except Exception as error:  # noqa: BLE001  # whatever the format's library raises
            why = error if isinstance(error, DecodeError) else f"{type(error).__name__}: {error}"
            raise DecodeError(f"{self._format}: {why}") from None
        return self._convert(loaded)

    def parse_all(self, values: pa.Array) -> list[Any] | None:
        if values.null_count:
            return None
        try:
            return list(map(self._convert, self.load_all(values)))
        except Exception:  # noqa: BLE001  # a value does not decode: they are decoded one by one
            return None


def converter(kind: Any) -> Callable[[Any], Any]:
    """A function from plain Python objects to instances of `kind`; it raises ValueError where an object does not fit.

    Raises:
        TypeError: there is no such conversion.
    """
    if kind is Any or kind is object:
        return _same
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return ModelValues(kind).from_object
    msgspec.inspect.type_info(kind)
    return lambda loaded: msgspec.convert(loaded, kind, builtin_types=_NATIVE)


def _same(loaded: Any) -> Any:
    return loaded
