"""Parses JSON values into instances of a type that the user declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec import inspect
from pydantic import BaseModel

from actorproc.codecs.json_limits import check_depth, deep_values
from actorproc.codecs.pydantic_values import ModelValues
from actorproc.errors import DecodeError
from actorproc.handler.decoder import Values

T = TypeVar("T")

_JSON = (dict, list, str, int, float, bool, type(None))


class TypedValues(Values[T]):
    """Parses JSON into `kind`: a `msgspec.Struct` (fastest), dataclass, NamedTuple, TypedDict or pydantic model.

    The result for a value does not depend on its neighbours.

    Raises:
        TypeError: instances of `kind` cannot be made of JSON.
    """

    def __init__(self, kind: type[T]) -> None:
        self._decode: Callable[[bytes], T]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            self._decode = ModelValues(kind).from_json
        else:
            decoder = msgspec.json.Decoder(kind)
            if (stranger := _stranger(inspect.type_info(kind), set())) is not None:
                raise TypeError(f"{stranger.__name__} is a plain class")  # msgspec would refuse each value
            self._decode = decoder.decode

    def parse(self, value: bytes | None) -> T:
        """Parse one value.

        Raises:
            ValueError: it is not JSON, or does not fit the type; names the field. The type's own code, such as
                `__post_init__`, may raise other errors.
        """
        if value is None:
            raise ValueError("the record has no value")
        check_depth(value)
        try:
            return self._decode(value)
        except msgspec.ValidationError:
            raise  # it is JSON, and does not fit
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DecodeError(f"the value is not JSON: {error}") from None

    def parse_all(self, values: pa.Array) -> list[T] | None:
        return next(self._parse_some(values, max(1, len(values))), [])

    def _parse_some(self, values: pa.Array, size: int) -> Iterator[list[T] | None]:
        if deep_values(values):
            yield from repeat(None, math.ceil(len(values) / size))
            return
        each = values.to_numpy(zero_copy_only=False).tolist()  # of bytes; faster than `to_pylist`
        for at in range(0, len(values), size):
            try:
                parsed = list(map(self._decode, each[at : at + size]))
            except Exception:  # noqa: BLE001  # one value does not fit; the type's own code may raise anything
                yield None
            else:
                yield parsed


def _stranger(kind: inspect.Type, seen: set[int]) -> type | None:
    """A class that values of this kind need an instance of, and that JSON cannot represent."""
    if isinstance(kind, inspect.CustomType):
        return None if any(issubclass(given, kind.cls) for given in _JSON) else kind.cls
    if isinstance(kind, inspect.UnionType):
        strangers = [_stranger(one, seen) for one in kind.types]
        return strangers[0] if all(strangers) else None
    if id(kind) in seen:
        return None
    seen.add(id(kind))
    fields: tuple[inspect.Field, ...] = getattr(kind, "fields", ())
    return next((found for field in fields if field.required and (found := _stranger(field.type, seen))), None)
