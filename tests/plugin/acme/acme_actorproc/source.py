"""The lines of files in a folder: `acme:///var/log/app`. Each file is a partition."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from actorproc.errors import UsageError
from actorproc.spi import Batch, Chunk, Clock, End, Settings, Source, Start, parse_options


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    suffix: str = ".log"
    poll: float = Field(1.0, gt=0)


class AcmeSource(Source):
    def __init__(self, url: str, options: Mapping[str, Any], *, settings: Settings, clock: Clock) -> None:
        self.url = self.identity = url
        self._folder = Path(url.removeprefix("acme://"))
        self._options = parse_options(url, Options, options)
        self._clock = clock

    async def partitions(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob(f"*{self._options.suffix}"))

    async def start(self, partition: str, at: Start) -> str:
        if at == "earliest":
            return "0"
        if at == "latest":
            return (await self.end(partition)).position
        raise UsageError(f"{self.url}: lines have no time; start at 'earliest' or 'latest'")

    async def end(self, partition: str) -> End:
        count = len(self._lines(partition))
        return End(str(count), count - 1 if count else None)

    async def read(self, partition: str, position: str) -> AsyncGenerator[Chunk, None]:
        while True:
            first, lines = int(position), self._lines(partition)[int(position) :]
            position = str(first + len(lines))
            yield Chunk(Batch.of(partition, lines, range(first, first + len(lines))), position)
            if not lines:  # the empty chunk has said that this is the end for now
                await self._clock.sleep(self._options.poll)

    def _lines(self, partition: str) -> list[bytes]:
        content = (self._folder / f"{partition}{self._options.suffix}").read_bytes()
        return content.split(b"\n")[:-1]  # without a line that is being written
