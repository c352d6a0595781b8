"""How requests to a store name their sender, so that they can be told apart in the provider's logs."""

from __future__ import annotations

from importlib.metadata import version

from actorproc.config.settings import Settings


def user_agent(settings: Settings) -> str:
    """`actorproc/VERSION`, and the setting `store_user_agent` behind it."""
    return " ".join(filter(None, [f"actorproc/{version('actorproc')}", settings.store_user_agent]))
