"""`check_source` finds each broken rule and names it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from actorproc import Chunk, End
from actorproc.errors import UsageError
from actorproc.sources import Start
from actorproc.testing import InvalidSource, MemorySource, check_source
from tests.testing.sources import appending, filled
from tests.testing.wrong_sources import SLOW_TO_FIND, WRONG, Cancelled, SharedCursor, StuckEnd


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
async def test_a_broken_rule_is_found_and_named(kind: type[MemorySource]) -> None:
    source = filled(kind(3))
    if kind is not StuckEnd and kind is not SharedCursor:
        source._page = 2
    add = None if kind is Cancelled else appending(source)
    with pytest.raises(InvalidSource) as caught:
        await check_source(lambda: source, add=add, patience=0.5 if kind in SLOW_TO_FIND else 30)
    assert re.search(WRONG[kind], str(caught.value), re.DOTALL)


class OfInstance(MemorySource):
    """Its positions are tokens that only the instance knows which gave them."""

    truth = filled(MemorySource(2, page=2))

    def __init__(self) -> None:
        self.__dict__ |= self.truth.__dict__
        self._tokens: dict[str, str] = {"first": "0"}

    async def start(self, partition: str, at: Start) -> str:
        return "first"

    async def end(self, partition: str) -> End:
        return End("last", (await super().end(partition)).sequence)

    def sequence_before(self, partition: str, position: str) -> int | None:
        return None

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        async with aclosing(super().read(partition, self._tokens[position])) as chunks:
            async for chunk in chunks:
                token = f"token {len(self._tokens)}"
                self._tokens[token] = chunk.next
                yield Chunk(chunk.batch, token)


async def test_positions_of_one_instance_only_are_found() -> None:
    class Tokens(OfInstance):
        async def start(self, partition: str, at: Start) -> str:
            if at != "earliest":
                raise UsageError("earliest only")
            return "first"

        async def end(self, partition: str) -> End:
            newest = await MemorySource.end(self, partition)
            self._tokens["last"] = newest.position
            return End("last", newest.sequence)

    await check_source(Tokens())
    with pytest.raises(InvalidSource, match=r"new instance\), partition '0'.*KeyError: 'last'"):
        await check_source(Tokens)


async def test_an_identity_that_differs_between_instances_is_found() -> None:
    class Made(MemorySource):
        made = 0

        def __init__(self) -> None:
            super().__init__(2)
            filled(self)
            type(self).made += 1
            self.identity = f"made {self.made}"

    with pytest.raises(InvalidSource, match="identity is 'made 2', and was 'made 1'"):
        await check_source(Made)


async def test_a_function_that_makes_no_source_is_refused() -> None:
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(UsageError, match="returned None, not a Source"):
        await check_source(nothing)
