"""JSON values into instances of a type that the user declares, many at once where that is sure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import pyarrow as pa
from pydantic import BaseModel

from actorproc.handlers.lines import one_a_line

T = TypeVar("T")


class TypedValues(Generic[T]):
    """Parses JSON into `kind`: a `msgspec.Struct` (fastest), dataclass, NamedTuple, TypedDict, pydantic model, dict, ...

    What a value gives never depends on those beside it.

    Raises:
        TypeError: instances of `kind` cannot be made of JSON.
    """

    def __init__(self, kind: type[T]) -> None:
        self._decode: Callable[[bytes], T]
        self._decode_lines: Callable[[pa.Buffer], list[T]] | None = None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            self._decode = kind.model_validate_json
        else:
            decoder = msgspec.json.Decoder(kind)
            self._decode, self._decode_lines = decoder.decode, decoder.decode_lines

    def parse(self, value: bytes | None) -> T:
        """Raises ValueError (by whatever parses): it is no JSON, or does not fit the type; says which field and why."""
        if value is None:
            raise ValueError("the record has no value")
        return self._decode(value)

    def parse_all(self, values: pa.Array) -> list[T] | None:
        """All of a binary column, in order; None if one of them may be against it."""
        lines = one_a_line(values) if self._decode_lines else None
        if lines is None or self._decode_lines is None:
            return None
        try:
            parsed: list[Any] = self._decode_lines(lines)
        except ValueError:
            return None
        return parsed if len(parsed) == len(values) else None  # each line gave at least one, so now one each
