"""Which stream a container belongs to: positions of one mean nothing in another."""

from __future__ import annotations

from actorproc.document import document, to_document
from actorproc.errors import UsageError
from actorproc.layout import ProcessorLayout
from actorproc.store import Conflict, Store


async def agree_on_source(store: Store, layout: ProcessorLayout, identity: str, name: str) -> None:
    """Record which stream is processed here, or check that it is still the same.

    Args:
        identity: of the stream (`Source.identity`): another one if it was deleted and made anew.
        name: what people call it.

    Raises:
        UsageError: it is another one; names both.
    """
    await check_source(store, layout, identity, name)
    body = to_document({"identity": identity, "name": name, "put_id": store.clock.nonce()})
    try:
        await store.create(layout.origin, body)
    except Conflict:
        await check_source(store, layout, identity, name)


async def check_source(store: Store, layout: ProcessorLayout, identity: str, name: str) -> None:
    """Check that `identity` is the stream that is processed here; nothing if none was recorded.

    Raises:
        UsageError: it is another one; names both.
    """
    stored = await store.get(layout.origin)
    if stored is None:
        return
    with document(layout.origin, stored.body, "name of a source") as fields:
        known, known_name = str(fields["identity"]), str(fields["name"])
    if known != identity:
        again = "deleted and made anew" if known_name == name else f"not {known_name}"
        raise UsageError(
            f"{layout.processor} in {store.url} belongs to another stream: {name} is {again}, and positions of one mean "
            "nothing in the other. Give another processor name (or container), or the source it began with"
        )


async def dataset_identity(store: Store, layout: ProcessorLayout) -> str | None:
    """What tells this processor's datasets from those of one that is made anew at the same place; None: nothing does.

    Raises:
        CorruptObject: the record of its stream is not what was written there.
    """
    stored = await store.get(layout.origin)
    if stored is None:
        return None
    with document(layout.origin, stored.body, "name of a source") as fields:
        return str(fields["put_id"])
