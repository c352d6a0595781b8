"""A replay into a stream without transactions repeats at most the letters whose outcome it does not know."""

from __future__ import annotations

import pytest

from actorproc import Batch
from actorproc.admin.replay import Replay
from actorproc.admin.replay_target import AppendableTarget
from actorproc.errors import SourceError
from actorproc.handler.info import PartitionInfo
from actorproc.output.dead_letters import letter_files, render_letter
from actorproc.runtime.clock import Clock
from actorproc.sources.appendable import Appendable
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Store
from actorproc.stores.memory import MemoryStore

LAYOUT = ProcessorLayout("flights")


class Stream(Appendable):
    """Takes two letters at once. The reply to the fourth one is lost."""

    appended_at_once = 2

    def __init__(self) -> None:
        self.appended: list[int] = []

    async def append(self, partition: str, records: Batch) -> None:
        self.appended += [record.json() for record in records]
        if len(self.appended) == 4:
            raise SourceError("no reply")


async def replay(store: Store, stream: Stream) -> tuple[int, int] | None:
    [key] = await letter_files(store, LAYOUT, None)
    return await Replay(store, "flights", AppendableTarget("stream", "id", stream)).file(key)


async def test_only_the_letters_of_a_lost_reply_are_appended_again() -> None:
    store, stream = Store(MemoryStore()), Stream()
    batch = Batch.of("1", [b"%d" % n for n in range(5)], range(5))
    site = PartitionInfo("flights", "host-a", "1", 3)
    body = b"".join(render_letter(record, KeyError("delay"), 3, site, Clock()) for record in batch)
    await store.put(LAYOUT.dead_letter_file("1", 0), body)
    with pytest.raises(SourceError):
        await replay(store, stream)
    assert await replay(store, stream) == (3, 2)
    assert await replay(store, stream) == (0, 5)
    assert stream.appended == [0, 1, 2, 3, 2, 3, 4]
