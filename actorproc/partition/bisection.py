"""Finds the bad records of a batch: which records are tried again, together or apart, and which are given up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from actorproc.config.settings import Settings
from actorproc.errors import ActorprocError, HandlerError, fault_of
from actorproc.handler.base import Decision
from actorproc.partition.delivery_mode import DeliveryMode
from actorproc.records import Batch
from actorproc.runtime.error_text import describe_error, format_error, safe_repr
from actorproc.runtime.user_code import user_code

Decide = Callable[[Exception, Batch, int], Decision | None]
"""`on_error`, called with the error, the failed records and the number of the attempt."""

GivenUp = dict[int, tuple[Exception, Decision]]
"""Error and decision for each record that is not tried again, by sequence."""


@dataclass(slots=True)
class Part:
    """Records that are processed together."""

    batch: Batch
    attempt: int = 1
    isolating: bool = False
    """One of them is bad, and is being searched for."""
    is_found: bool = False
    """It is one record, and has failed as such."""


class Parts:
    """The parts of one batch that wait to be processed, in order.

    A batch that fails is tried `max_attempts` times. Then it is cut in halves until each bad record is alone. During
    this search, attempts are counted per type of error and batch: a part that fails with a new type of error is tried
    again, because a service may just have gone away. A record that is found in this way is processed once more, at
    once: it may be a good one that failed once, with the same type of error as the bad ones.

    Records that failed alone are tried again without the others. If the handler uses state, all records are processed
    again in their order, cut at those that failed: the records before one, it alone, those behind it. So a record that
    goes on failing is all that is called again. Each has `max_attempts` of its own, whatever happens to the rest.
    """

    def __init__(self, batch: Batch, settings: Settings, delivery: DeliveryMode, decide: Decide, log: Any) -> None:
        self._left = deque([Part(batch)] if len(batch) else [])
        self._max_attempts = settings.max_attempts
        self._repeats = delivery.repeats
        self._decide = decide
        self._logger = log
        self._tried: Counter[str] = Counter()  # failed attempts by type of error
        self._failed_alone: Counter[int] = Counter()  # failed attempts of single records, by sequence

    def __iter__(self) -> Iterator[Part]:
        """Each part in its turn; failures add parts."""
        while self._left:
            yield self._left.popleft()

    def put_off(self, batch: Batch) -> None:
        """These records were not called yet. They wait until those that failed before them are done."""
        if len(batch):
            self._left.appendleft(Part(batch))

    @property
    def waiting(self) -> list[int]:
        """First sequences of the parts that wait."""
        return [part.batch.first for part in self._left]

    def failed(self, part: Part, error: Exception) -> GivenUp | None:
        """The attempt as a whole failed. None: the part is tried again after a pause. Otherwise without one.

        Raises:
            HandlerError: the handler's `on_error` returned `Decision.STOP`, or failed itself.
        """
        decision = self._decision(error, part.batch, part.attempt)
        self._tried[_kind(error)] += 1
        attempts = self._tried[_kind(error)] if part.isolating else part.attempt
        if self._tries_again(decision, attempts):
            part.attempt += 1
            self._left.appendleft(part)
            return None
        if self._is_tried_once_more(part, decision):
            part.is_found = True
            part.attempt += 1
            self._left.appendleft(part)
            return {}
        if len(part.batch) == 1 or not self._repeats:
            return dict.fromkeys(part.batch.sequences, (error, decision or Decision.DEAD_LETTER))
        middle = len(part.batch) // 2
        for half in (part.batch[middle:], part.batch[:middle]):
            self._left.appendleft(Part(half, part.attempt + (len(half) == 1), isolating=True))
        return {}

    def _is_tried_once_more(self, part: Part, decision: Decision | None) -> bool:
        is_new = part.isolating and len(part.batch) == 1 and not part.is_found
        return is_new and decision is None and self._max_attempts > 1 and self._repeats

    def check_goes_on(self, part: Part, error: Exception) -> None:
        """The attempt as a whole failed, beside single records, whose failures decide which records are tried again.

        Raises:
            HandlerError: the handler's `on_error` returned `Decision.STOP`, or failed itself.
        """
        self._decision(error, part.batch, part.attempt)

    def failed_alone(
        self,
        part: Part,
        failures: Mapping[int, Exception],
        *,
        hopeless: Set[int],
        others: bool,
        in_order: bool = False,
    ) -> GivenUp:
        """Some records failed, each on its own. Those that are not given up are tried again after a pause.

        Args:
            failures: errors by sequence.
            hopeless: sequences of records that would fail again in the same way.
            others: whether the other records are processed again, without these.
            in_order: all records that are not given up are processed again.

        Raises:
            HandlerError: the handler's `on_error` returned `Decision.STOP`, or failed itself.
        """
        if others and not in_order:
            rest = [index for index, sequence in enumerate(part.batch.sequences) if sequence not in failures]
            if rest:
                self._left.appendleft(Part(part.batch.take(rest), part.attempt, part.isolating))
        given_up: GivenUp = {}
        self._tried.update(set(map(_kind, failures.values())))
        again: list[int] = []
        order = part.batch.sequence_array.to_numpy()
        for sequence in sorted(failures):
            index, error = int(order.searchsorted(sequence)), failures[sequence]
            decision = self._decision(error, part.batch[index : index + 1], part.attempt)
            self._failed_alone[sequence] += 1
            if self._tries_again(decision, self._failed_alone[sequence], helps=sequence not in hopeless):
                again.append(index)
            else:
                given_up[sequence] = error, decision or Decision.DEAD_LETTER
        if in_order:
            self._left.extendleft(reversed(self._cut_at(part, again, given_up)))
        elif again:
            self._left.appendleft(Part(part.batch.take(again), part.attempt + 1, part.isolating))
        return given_up

    def _cut_at(self, part: Part, failed: list[int], given_up: GivenUp) -> list[Part]:
        """The part without the records given up, cut before and behind each failed one, at these places."""
        cut = set(failed)
        pieces: list[tuple[int, list[int]]] = [(1, [])]  # number of the next attempt, and places
        for place, sequence in enumerate(part.batch.sequences):
            if place in cut:
                pieces += [(self._failed_alone[sequence] + 1, [place]), (1, [])]
            elif sequence not in given_up:
                pieces[-1][1].append(place)
        return [Part(part.batch.take(places), attempt, part.isolating) for attempt, places in pieces if places]

    def _decision(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        try:
            return self._asked(error, failed, attempt)
        except ActorprocError as stopping:
            if self._repeats:
                raise
            why = "with at-most-once delivery a stop would lose the records, so they become dead letters"
            self._logger.error("partition.not_stopped", error=str(stopping), why=why)  # noqa: TRY400
            return None

    def _asked(self, error: Exception, failed: Batch, attempt: int) -> Decision | None:
        """The decision of `on_error`. Raises HandlerError if that is `Decision.STOP`, or if `on_error` fails."""
        with user_code("on_error", HandlerError):
            decision: object = self._decide(error, failed[:], attempt)  # it may change the lists of its batch
        if decision is Decision.STOP:
            stopped = HandlerError(f"on_error returned Decision.STOP: {format_error(error)}")
            stopped.fault = fault_of(error)
            raise stopped from error
        if decision is None or isinstance(decision, Decision):
            return decision
        raise HandlerError(
            f"on_error returned {safe_repr(decision):.100}; allowed are {', '.join(map(str, Decision))}, and None "
            f"for the default. It was asked about {describe_error(error)}"
        ) from error

    def _tries_again(self, decision: Decision | None, attempts: int, *, helps: bool = True) -> bool:
        if not self._repeats or decision is Decision.RETRY:
            return self._repeats
        return helps and decision is None and attempts < self._max_attempts


def _kind(error: Exception) -> str:
    """The type by name: a handler may define a new class for each error."""
    return f"{type(error).__module__}.{type(error).__qualname__}"
