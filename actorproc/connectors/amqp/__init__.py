"""Queues of AMQP 1.0 brokers as a source. Needs the extra `amqp`."""

from __future__ import annotations

from actorproc.runtime.requirements import how_to_install

try:
    import proton  # noqa: F401
except ImportError:
    raise ImportError(f"a source of AMQP queues needs python-qpid-proton: {how_to_install('amqp')}") from None

from actorproc.connectors.amqp.source import AmqpSource

__all__ = ["AmqpSource"]
