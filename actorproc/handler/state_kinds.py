"""Reads from a handler class which states it declares: `State` and `state_ttl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from actorproc.config.units import seconds
from actorproc.errors import HandlerDefinitionError
from actorproc.handler.base import PartitionHandler
from actorproc.handler.keyed_state import StateKind, StateKinds, checked_ttl
from actorproc.handler.state_schema import value_type


def state_kinds(handler: Any) -> StateKinds:
    """The states of a handler class.

    Raises:
        HandlerDefinitionError: a type cannot be stored, or a time to live is no time.
    """
    types, ttls = handler.State, handler.state_ttl
    by_name = dict(types) if isinstance(types, Mapping) else {} if types is None else {"": types}
    lives = dict(ttls) if isinstance(ttls, Mapping) else {} if ttls is None else {"": ttls}
    kinds = {
        name: StateKind(_checked(handler, name, by_name.get(name, Any)), _ttl(handler, name, lives.get(name)))
        for name in {**by_name, **lives}
    }
    return StateKinds(kinds, others=not isinstance(types, Mapping), wakes=wakes(handler))


def wakes(handler: Any) -> bool:
    """Whether a handler class has an `on_wake` of its own, and so may set timers."""
    return handler.on_wake is not PartitionHandler.on_wake


def state_types(handler: Any) -> dict[str, pa.DataType]:
    """The column types of the states that a handler class declares, by name; without those that no column holds."""
    types = {name: value_type(kind.type) for name, kind in state_kinds(handler).declared.items()}
    return {name: found for name, found in types.items() if found is not None}


def _checked(handler: type, name: str, kind: Any) -> Any:
    try:
        msgspec.msgpack.Decoder(kind)
    except (TypeError, NameError) as error:
        raise HandlerDefinitionError(
            f"{handler.__name__}.State: {kind!r}{f' of state {name!r}' if name else ''} cannot be stored: {error}"
        ) from None
    return kind


def _ttl(handler: type, name: str, given: object) -> float | None:
    if given is None:
        return None
    try:
        ttl = seconds(given)
        return checked_ttl(ttl)
    except ValueError:
        pass
    raise HandlerDefinitionError(
        f"{handler.__name__}.state_ttl = {given!r}{f' of state {name!r}' if name else ''}: seconds, more than 0 "
        "and at most a hundred years, or text with a unit, such as '30m'"
    )
