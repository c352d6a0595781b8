"""Measures how long a value has not changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stillness:
    """How long a value has not changed, within the pause between two calls of `lasts`."""

    _value: object = None
    _since: float = 0.0

    def lasts(self, value: object, limit: float, now: float) -> bool:
        """Whether it has not changed for `limit` seconds: true once per `limit`. None: there is nothing to wait for."""
        if value is None or value != self._value:
            self._value, self._since = value, now
            return False
        if now - self._since < limit:
            return False
        self._value = None
        return True

    def seconds(self, now: float) -> float:
        """For how long it has not changed; 0 if there is nothing to wait for."""
        return 0.0 if self._value is None else now - self._since
