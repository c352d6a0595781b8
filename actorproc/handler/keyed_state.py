"""Keyed state as a handler sees it: `ctx.state`, and the changes of one attempt over the state of the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from actorproc.errors import StateMismatch
from actorproc.handler.state_columns import joined_columns, packed_keys, packed_values
from actorproc.handler.state_values import check_kept, packed_value
from actorproc.runtime.clock import SYSTEM
from actorproc.runtime.error_text import safe_repr

TIMERS = "actorproc.timers"
"""Name of the state that holds the timers of `ctx.wake`. Handlers cannot use it otherwise."""

Plain = str | bytes | int
Key = Plain | tuple[Plain, ...]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_PLAIN = frozenset({str, bytes, int})
_UNCHANGED = b""  # no value is packed into no bytes

MOST_SECONDS = 100 * 366 * 86_400
"""Longest time to live, and longest wait for a timer: a hundred years. No datetime may hold a later time."""


@dataclass(slots=True)
class Changes:
    """Changed keys of one named state, packed. The later change of a key wins."""

    values: dict[bytes, bytes | None] = field(default_factory=dict)
    """None: the key is deleted."""
    lives: dict[bytes, float] = field(default_factory=dict)
    """Seconds to live of the keys that are set with a limit."""

    def add(self, later: Changes) -> None:
        """Take in later changes."""
        self.values |= later.values
        if self.lives:
            for key in later.values:
                self.lives.pop(key, None)
        self.lives |= later.lives

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.values)) + sum(map(len, filter(None, self.values.values())))

    def deleted(self) -> list[bytes]:
        return [key for key, value in self.values.items() if value is None]

    def copy(self) -> Changes:
        return Changes(dict(self.values), dict(self.lives))


StateChanges = dict[str, Changes]
"""By the name of the state."""


@dataclass(frozen=True, slots=True)
class StateKind:
    """One named state: values of `type`, which live for `ttl` seconds unless `set` says otherwise."""

    type: Any = Any
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class StateKinds:
    """The states that a handler declares.

    `ctx.state` itself always exists: the named ones are reached through it.

    Attributes:
        others: whether it may have others, of any values.
        wakes: whether it has an `on_wake`, and so may have timers.
    """

    declared: Mapping[str, StateKind] = field(default_factory=dict)
    others: bool = True
    wakes: bool = False

    def kind(self, name: str) -> StateKind:
        """Raises StateMismatch if the handler may not have a state of this name."""
        found = self.declared.get(name)
        if found is None and name not in ("", TIMERS) and not self.others:
            known = ", ".join(sorted(map(repr, self.declared)))
            raise StateMismatch(f"ctx.state({name!r}): the handler's State declares {known}")
        return found or StateKind()


NO_KINDS = StateKinds()


def pack_key(key: Key) -> bytes:
    """The key as stored.

    Raises:
        StateMismatch: a key of another type, an integer outside of 64 bits, or text that UTF-8 cannot encode.
    """
    if type(key) in _PLAIN or (type(key) is tuple and _PLAIN.issuperset(map(type, key))):
        try:
            return _encode(key)
        except (OverflowError, ValueError) as error:
            raise StateMismatch(f"ctx.state: key {safe_repr(key):.80} cannot be stored: {error}") from None
    raise StateMismatch(
        f"ctx.state: key {safe_repr(key):.80} ({type(key).__name__}): str, bytes, int or a tuple of these"
    )


def unpack_key(packed: bytes) -> Key:
    key = _decode(packed)
    return tuple(key) if type(key) is list else key


class KeyedState:
    """State by key, committed with position and rows, or not at all.

    Keys are str, bytes, int, or tuples of these. Values are None, bool, int, float, str, bytes, datetimes with a zone,
    and lists and dicts of these; or the type that the handler declares as `State`. A value that is read is a copy:
    `set` it again to change it.

    A failed attempt leaves no changes.
    """

    __slots__ = ("_changed", "_decode", "_held", "_kind", "_lives", "_of", "_typed")

    def __init__(self, of: AttemptState, kind: StateKind, held: Mapping[bytes, bytes], changes: Changes) -> None:
        self._of = of
        self._kind = kind
        self._held = held
        self._changed, self._lives = changes.values, changes.lives
        self._typed = kind.type is not Any
        self._decode = msgspec.msgpack.Decoder(kind.type).decode if self._typed else _decode

    def __call__(self, name: str) -> KeyedState:
        """The state of this name. Each has its own keys."""
        if name == TIMERS:
            raise StateMismatch(f"ctx.state({name!r}) holds the timers: use ctx.wake and ctx.cancel_wake")
        return self._of.view(name)

    # Reading

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        packed = _encode(key) if type(key) is str and key.isascii() else pack_key(key)
        found = self._changed.get(packed, _UNCHANGED)
        if found is _UNCHANGED:
            found = self._held.get(packed)
        return default if found is None else self._decode(found)

    def __getitem__(self, key: Key) -> Any:
        found = self._found(pack_key(key))
        if found is None:
            raise KeyError(key)
        return self._decode(found)

    def get_many(self, keys: Iterable[Key], default: Any = None) -> list[Any]:
        """The values of the keys, in their order."""
        return [self.get(key, default) for key in keys]

    def __contains__(self, key: Key) -> bool:
        return self._found(pack_key(key)) is not None

    def __len__(self) -> int:
        held, count = self._held, len(self._held)
        for key, value in self._changed.items():
            count += (value is not None) - (key in held)
        return count

    def items(self, *, prefix: str | bytes | tuple[Plain, ...] | None = None) -> Iterator[tuple[Key, Any]]:
        """Keys and values, in no particular order. Looks at all keys.

        Args:
            prefix: only keys of this type that begin so; for tuples by their first items.
        """
        for packed in [*self._held.keys(), *(key for key in self._changed if key not in self._held)]:
            key = unpack_key(packed)
            if (prefix is None or _begins(key, prefix)) and (found := self._found(packed)) is not None:
                yield key, self._decode(found)

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self.items())

    def packed(self, key: bytes) -> bytes | None:
        """The packed value of a packed key."""
        return self._found(key)

    def _found(self, packed: bytes) -> bytes | None:
        found = self._changed.get(packed, _UNCHANGED)
        return self._held.get(packed) if found is _UNCHANGED else found

    # In columns

    def join(self, table: pa.Table, *, on: str | Sequence[str]) -> pa.Table:
        """Add the value of each row's key as columns: the fields of `State`, or `value`. Null where there is no key.

        Args:
            on: column of the keys; several columns make a tuple.

        Raises:
            HandlerMisuse: `State` has no columns, or a column is missing, or is there already.
            StateMismatch: a key column has nulls, or a type that is no type of keys.
        """
        packed = packed_keys(table, on)
        found = list(map(self._found if self._changed else self._held.get, packed))
        return joined_columns(table, self._kind.type, found)

    def update(self, table: pa.Table, *, on: str | Sequence[str], ttl: float | None = None) -> None:
        """Set the value of each row's key from the other columns. Of several rows of a key the last one counts.

        A column that the table lacks takes the default of its field.

        Args:
            on, ttl: as for `join` and `set`.

        Raises:
            HandlerMisuse: a column is no field of `State`; or as `join`.
            StateMismatch: as `set` and `join`.
            msgspec.ValidationError: a value is not of its declared type.
        """
        if self._of.closed is not None:
            raise self._of.closed()
        packed = packed_keys(table, on)
        changed = dict(zip(packed, packed_values(table, self._kind.type, on), strict=True))
        ttl = self._kind.ttl if ttl is None else checked_ttl(ttl)
        for key, value in changed.items():
            self._change(key, value, ttl)

    # Changing

    def set(self, key: Key, value: Any, *, ttl: float | None = None) -> None:
        """Set the value of `key`.

        Args:
            ttl: seconds from the commit of this change after which the key is gone. Default: that of the handler's
                `state_ttl`, else never.

        Raises:
            StateMismatch: the key, the value or the time cannot be stored, or a part of the value would come back as
                another type.
            msgspec.ValidationError: a field of the value is not of its declared type.
        """
        if self._of.closed is not None:
            raise self._of.closed()
        ttl = self._kind.ttl if ttl is None else checked_ttl(ttl)
        packed = _encode(key) if type(key) is str and key.isascii() else pack_key(key)
        stored = self._pack(key, value) if self._typed else packed_value(key, value)
        if ttl is not None or self._lives:
            self._change(packed, stored, ttl)
            return
        changed = self._changed
        if (journal := self._of.journal) is not None:
            journal.append((changed, self._lives, packed, changed.get(packed, _UNCHANGED), None))
        changed[packed] = stored

    def _change(self, packed: bytes, value: bytes | None, ttl: float | None) -> None:
        changed, lives = self._changed, self._lives
        if (journal := self._of.journal) is not None:
            journal.append((changed, lives, packed, changed.get(packed, _UNCHANGED), lives.get(packed)))
        changed[packed] = value
        if ttl is not None:
            lives[packed] = ttl
        elif lives:
            lives.pop(packed, None)

    def __setitem__(self, key: Key, value: Any) -> None:
        self.set(key, value)

    def _pack(self, key: Key, value: Any) -> bytes:
        if not isinstance(value, self._kind.type):
            raise StateMismatch(
                f"ctx.state: the value of {safe_repr(key):.80} is a {type(value).__name__}, and State is "
                f"{self._kind.type.__name__}"
            )
        try:
            packed = _encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StateMismatch(f"ctx.state: the value of {safe_repr(key):.80} cannot be stored: {error}") from None
        check_kept(key, value, self._decode(packed))  # a struct does not check its fields
        return packed

    def delete(self, key: Key) -> None:
        """Delete `key`, if it exists."""
        if self._of.closed is not None:
            raise self._of.closed()
        self._change(pack_key(key), None, None)

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)


def checked_ttl(ttl: Any) -> float:
    """Seconds to live. Raises StateMismatch: no number, not more than 0, or more than a hundred years."""
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and 0 < ttl <= MOST_SECONDS:
        return float(ttl)
    raise StateMismatch(f"ctx.state: ttl = {safe_repr(ttl):.80}: seconds, more than 0 and at most {MOST_SECONDS:,}")


def _begins(key: Key, prefix: str | bytes | tuple[Plain, ...]) -> bool:
    if type(key) is not type(prefix):
        return False
    return key[: len(prefix)] == prefix


def _nothing(name: str) -> Mapping[bytes, bytes]:
    return {}


Change = tuple[dict[bytes, bytes | None], dict[bytes, float], bytes, bytes | None, float | None]
"""The dicts of one state, and the key, value and time to live before a change."""


class Journal(Protocol):
    """Notes each change, so that it can be undone."""

    def append(self, change: Change, /) -> None:
        """Note a change before it is made."""


def undo(journal: list[Change]) -> None:
    """Take back these changes."""
    while journal:
        changed, lives, key, value, life = journal.pop()
        if value is _UNCHANGED:
            del changed[key]
        else:
            changed[key] = value
        if life is None:
            lives.pop(key, None)
        else:
            lives[key] = life


class AttemptState:
    """The states of one attempt: its changes over the state of the partition.

    Args:
        held: returns the partition's values of a name, packed.
        changes: of the records of the batch before those of the attempt. They are not changed.
        now: seconds since 1970, by the store's clock.
    """

    def __init__(
        self,
        held: Callable[[str], Mapping[bytes, bytes]] = _nothing,
        kinds: StateKinds = NO_KINDS,
        changes: Mapping[str, Changes] | None = None,
        now: Callable[[], float] = SYSTEM.wall,
    ) -> None:
        self._held = held
        self.kinds = kinds
        self.now = now
        self._changes = {name: some.copy() for name, some in changes.items()} if changes else {}
        self.views: dict[str, KeyedState] = {}
        """The states that the handler has looked at in this attempt, by name."""
        self.closed: Callable[[], Exception] | None = None
        """Once the attempt is closed: makes the error for a change that comes too late."""
        self.journal: Journal | None = None
        """Notes the changes, if they can be undone record by record."""

    @property
    def used(self) -> bool:
        """Whether the handler has looked at any state in this attempt: then its results depend on the order."""
        return bool(self.views)

    @property
    def changed(self) -> bool:
        """Whether anything waits for a commit: changes of this attempt, or of earlier records of the batch."""
        return any(some.values for some in self._changes.values())

    def __len__(self) -> int:
        """Number of changed keys."""
        return sum(len(some.values) for some in self._changes.values())

    def view(self, name: str) -> KeyedState:
        """The state of this name.

        Raises:
            StateMismatch: the handler declares its states, and none of this name.
        """
        found = self.views.get(name)
        if found is None:
            if type(name) is not str:
                raise StateMismatch(f"ctx.state({safe_repr(name):.80}): the name of a state is a str")
            kind = self.kinds.kind(name)
            changes = self._changes.setdefault(name, Changes())
            found = self.views[name] = KeyedState(self, kind, self._held(name), changes)
        return found

    def changes(self) -> StateChanges:
        """A copy of the changes."""
        return {name: some.copy() for name, some in self._changes.items() if some.values}

    def take(self) -> StateChanges:
        """The changes; then there are none."""
        taken = self.changes()
        for some in self._changes.values():
            some.values.clear()
            some.lives.clear()
        return taken
