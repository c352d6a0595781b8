"""Puts the changes of the spans of one physical range into one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actorproc.connectors.cosmos.columns import Document, lsn_of_document
from actorproc.connectors.cosmos.position import Position, Span, joined


@dataclass(slots=True)
class _Part:
    """Attributes:
    span: how far it was asked.
    waiting: documents that were read, and come after those that were given out.
    at_end: the latest page was empty.
    """

    span: Span
    waiting: list[Document] = field(default_factory=list)
    at_end: bool = False

    def take(self, upto: int) -> list[Document]:
        """The documents up to this transaction."""
        taken = [document for document in self.waiting if lsn_of_document(document) <= upto]
        del self.waiting[: len(taken)]
        return taken


class Merge:
    """Reads the spans of a partition side by side, each on from its own place.

    A merged range has a span for each parent. Transactions of two parents may have the same number, and the service may
    end a page between them. So no request covers two spans before the range itself has said that both are read to their
    ends, at the same number. From then on the range numbers all changes, and they are read as one span.
    """

    def __init__(self, position: Position) -> None:
        self._parts = [_Part(span) for span in position]

    @property
    def _behind(self) -> _Part:
        return min(self._parts, key=lambda part: (part.span.lsn, part.at_end))

    @property
    def next_span(self) -> Span:
        """The span of which the next page is needed."""
        return self._behind.span

    @property
    def position(self) -> Position:
        """Behind all documents that were given."""
        upto = self._behind.span.lsn
        return Position(part.span._replace(lsn=upto) if part.waiting else part.span for part in self._parts)

    @property
    def at_end(self) -> bool:
        """Whether the latest page of each span was empty."""
        return all(part.at_end for part in self._parts)

    def add(self, documents: Sequence[Document], lsn: int) -> Sequence[Document]:
        """Take a page of `next_span`, which goes up to transaction `lsn`. Returns the documents that come next."""
        part = self._behind
        part.span, part.at_end = part.span._replace(lsn=lsn), not documents
        if len(self._parts) == 1:
            return documents
        part.waiting += documents
        upto = self._behind.span.lsn
        given = sorted((document for part in self._parts for document in part.take(upto)), key=lsn_of_document)
        if self.at_end and len({part.span.lsn for part in self._parts}) == 1:
            self._parts = [_Part(span, at_end=True) for span in joined(part.span for part in self._parts)]
        return given
