"""Reads a source in a task of its own, as a processor does: chunk by chunk, and cancelled at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import NamedTuple, NoReturn

import anyio

from actorproc.records import Batch, Headers
from actorproc.runtime.error_text import describe_error
from actorproc.sources.protocol import Chunk, Source


class InvalidSource(AssertionError):
    """The source breaks a rule. The message names the rule, the place and the wrong value."""


class Fact(NamedTuple):
    """The parts of a record that must be the same at each read."""

    sequence: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: datetime | None


@asynccontextmanager
async def reading(source: Source, name: str, partition: str, position: str, patience: float) -> AsyncIterator[Reading]:
    """Read from `position` until the block ends. `name` names the source in messages.

    Raises:
        InvalidSource: it does not end when it is cancelled.
    """
    one = Reading(source, name, partition, position, patience)
    try:
        yield one
    except BaseException:
        await one.end(1)
        raise
    await one.close()


class Reading:
    """Reads chunks; its methods raise InvalidSource where `read` breaks a rule."""

    def __init__(self, source: Source, name: str, partition: str, position: str, patience: float) -> None:
        self.partition, self.position, self.last = partition, position, -1
        self.ended = False
        """Whether a chunk has said that the partition has ended."""
        self._source, self._name, self._patience = source, name, patience
        self._asked = asyncio.Semaphore(0)
        self._answers: asyncio.Queue[Chunk | Exception | BaseExceptionGroup[BaseException]] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with aclosing(self._source.read(self.partition, self.position)) as chunks:
                while await self._asked.acquire():
                    self._answers.put_nowait(await anext(chunks))
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # raised by the caller
            self._answers.put_nowait(error)

    def ask(self) -> None:
        """Request the next chunk, unless the partition has ended."""
        if not self.ended:
            self._asked.release()

    async def next(self) -> list[Fact]:
        """The records of the next chunk; none at the end."""
        if self.ended:
            return []
        self.ask()
        with anyio.move_on_after(self._patience) as cut:
            facts = await self._answer()
        if cut.cancelled_caught:
            self._fail(
                f"read() gave nothing for {self._patience:g} s (`patience`): at the end of the stream it must yield "
                "an empty chunk before it waits"
            )
        return facts

    async def next_facts(self) -> list[Fact]:
        """The records of the next chunk that has records. A chunk was requested."""
        while not (facts := await self._answer()):
            self.ask()
        return facts

    async def _answer(self) -> list[Fact]:
        chunk = await self._answers.get()
        if isinstance(chunk, StopAsyncIteration):
            self._fail(
                "read() ended: it must go on for ever, and wait for new records at the end, or yield a last chunk with "
                "`ended`"
            )
        if isinstance(chunk, (Exception, BaseExceptionGroup)):
            self._fail(f"read() failed: {describe_error(chunk)}", chunk)
        if pair := chunk.batch.disorder(self.last):
            self._fail(f"read() gave sequence {pair[1]} after {pair[0]}: they must grow from record to record, from 0")
        facts = self._facts(chunk.batch)
        self.position, self.last = chunk.next, facts[-1].sequence if facts else self.last
        self.ended = chunk.ended
        return facts

    def _facts(self, batch: Batch) -> list[Fact]:
        try:
            columns = batch.sequences, batch.values, batch.keys, batch.headers, batch.timestamps
            return [Fact(*fact) for fact in zip(*columns, strict=True)]
        except Exception as error:  # noqa: BLE001  # any column may be wrong
            self._fail(
                f"read() gave a batch whose columns are not those of RECORD_SCHEMA: {describe_error(error)}", error
            )

    def _fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        place = f"{self._name}, partition {self.partition!r}, after position {self.position!r} and sequence {self.last}"
        raise InvalidSource(f"{place}: {what}") from cause

    async def end(self, patience: float) -> bool:
        """Cancel the read. Returns whether it ended."""
        self._task.cancel()
        return bool((await asyncio.wait({self._task}, timeout=patience))[0])

    async def close(self) -> None:
        """Cancel the read, wherever it waits or yields."""
        if not await self.end(self._patience):
            self._fail(
                f"read() did not end for {self._patience:g} s (`patience`) when it was cancelled: "
                "let CancelledError pass, and give anyio.to_thread.run_sync abandon_on_cancel=True"
            )
        while not self._answers.empty():
            if isinstance(error := self._answers.get_nowait(), (Exception, BaseExceptionGroup)):
                self._fail(f"read() failed as it was closed: {describe_error(error)}", error)
