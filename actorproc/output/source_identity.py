"""Which stream a container belongs to: positions of one mean nothing in another."""

from __future__ import annotations

from actorproc.errors import UsageError
from actorproc.storage.document import document, to_document
from actorproc.storage.listing import documents
from actorproc.storage.names import ProcessorLayout
from actorproc.storage.store import Conflict, Store


async def agree_on_source(store: Store, layout: ProcessorLayout, identity: str | None, name: str, kind: str) -> None:
    """Record which stream is processed here, or check that it is still the same.

    Args:
        identity: of the stream (`Source.identity`): another one if it was deleted and made anew. None: it has none.
        name: what people call it.
        kind: name of the source's class, by which one without identity is known.

    Raises:
        UsageError: it is another one; names both.
    """
    if await check_source(store, layout, identity, name, kind):
        return
    if identity is not None:
        await _refuse_state_of_another(store, layout, identity, name, kind)
    body = to_document({"identity": identity, "kind": kind, "name": name, "put_id": store.clock.nonce()})
    try:
        await store.create(layout.origin, body)
    except Conflict:
        await check_source(store, layout, identity, name, kind)


async def check_source(
    store: Store, layout: ProcessorLayout, identity: str | None, name: str, kind: str = "", *, if_known: bool = False
) -> bool:
    """Check that this is the stream that is processed here. False if none was recorded.

    Args:
        if_known: one without an identity may be any.

    Raises:
        UsageError: it is another one; names both.
    """
    stored = await store.get(layout.origin)
    if stored is None:
        return False
    with document(layout.origin, stored.body, "name of a source") as fields:
        if if_known and fields["identity"] is None:
            return True
        why = _why_other(fields["identity"], str(fields["name"]), str(fields.get("kind")), identity, name, kind)
    if why is not None:
        raise UsageError(
            f"{layout.processor} in {store.url} belongs to another stream: {name} is {why}. Positions of one mean "
            "nothing in the other. Give another processor name (or container), or the source it began with"
        )
    return True


async def _refuse_state_of_another(store: Store, layout: ProcessorLayout, identity: str, name: str, kind: str) -> None:
    """Nothing is recorded: then there is no state, or one of a source without identity, of which nothing used to be."""
    begun = await documents(store, layout.checkpoints)
    if begun and not await check_source(store, layout, identity, name, kind):  # not by another host just now, either
        raise UsageError(
            f"{layout.processor} in {store.url} began with a source that has no identity, and {name} has one. Positions of one "
            "mean nothing in the other. Give another processor name (or container), or the source it began with"
        )


def _why_other(
    known: object, known_name: str, known_kind: str, identity: str | None, name: str, kind: str
) -> str | None:
    """Why what is offered is not what is known; None if it is."""
    if known is not None and identity is not None:
        if str(known) == identity:
            return None
        return "deleted and made anew" if known_name == name else f"not {known_name}"
    if known is None and identity is None:
        return None if known_kind == kind else f"of class {kind}, not {known_kind} (neither has an identity)"
    has, has_not = (known_name, name) if identity is None else (name, known_name)
    return f"not known to be {known_name}: {has} has an identity, {has_not} has none"


async def recorded_source(store: Store, layout: ProcessorLayout) -> tuple[str, str] | None:
    """Name and kind of the stream that is processed here, as `agree_on_source` recorded them. None: nothing was."""
    stored = await store.get(layout.origin)
    if stored is None:
        return None
    with document(layout.origin, stored.body, "name of a source") as fields:
        return str(fields["name"]), str(fields.get("kind"))


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
