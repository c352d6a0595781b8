"""Positions in a topic partition: an offset, and the id of the topic to which it belongs."""

from __future__ import annotations

from typing import NamedTuple

from actorproc.errors import SourceError


class Position(NamedTuple):
    """The next offset to read. As text `OFFSET@TOPIC-ID`, or `OFFSET` where the broker gives topics no ids.

    A topic that is deleted and created again has another id, and its offsets begin anew.
    """

    offset: int
    topic_id: str | None = None

    def __str__(self) -> str:
        return str(self.offset) if self.topic_id is None else f"{self.offset}@{self.topic_id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises SourceError: the text is no position of a topic."""
        offset, at, topic_id = text.partition("@")
        try:
            return cls(int(offset), topic_id if at else None)
        except ValueError:
            raise SourceError(f"position {text!r} is no offset of a topic") from None

    def is_of(self, topic_id: str | None) -> bool:
        """Whether it may belong to the topic of this id. An unknown id may be any."""
        return self.topic_id is None or topic_id is None or self.topic_id == topic_id
