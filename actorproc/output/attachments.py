"""Attachments: objects beside a commit. They are put before it, and only its footer or a checkpoint names them."""

from __future__ import annotations

from dataclasses import dataclass

from actorproc.runtime.tasks import gather
from actorproc.storage.backend import Entry
from actorproc.storage.names import Attached, ProcessorLayout, number_before_id
from actorproc.storage.store import Store


@dataclass(frozen=True, slots=True)
class Attachment:
    """The content of an object that is to be put beside a commit."""

    kind: Attached
    body: bytes


async def put_attachments(
    store: Store,
    layout: ProcessorLayout,
    partition: str,
    number: int,
    put_id: str,
    attachments: tuple[Attachment, ...],
) -> None:
    """Put objects that commit `number` with this put-id is going to name. If it fails, nothing ever names them."""

    async def put(index: int) -> None:
        attachment = attachments[index]
        await store.put(layout.attached(attachment.kind, partition, number, put_id), attachment.body)

    await gather(range(len(attachments)), put)


async def list_attachments(
    store: Store, layout: ProcessorLayout, partition: str, kind: Attached
) -> tuple[float, list[tuple[int, Entry]]]:
    """Number and entry of each attachment of this kind, with the store's clock.

    The commit of that number may have another put-id: it does not name the object then.
    """
    folder = layout.attached_dir(kind, partition)
    listing = await store.list(folder)
    numbers = ((number_before_id(folder, entry.key, kind.suffix), entry) for entry in listing.entries)
    return listing.now, [(number, entry) for number, entry in numbers if number is not None]
