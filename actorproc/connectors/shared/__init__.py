"""Shared by two connectors: AMQP 1.0, Azure's login and its processors' checkpoints."""
