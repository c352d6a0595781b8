"""Shared by connectors: AMQP 1.0, Azure's login and its processors' checkpoints, stores behind a REST interface."""
