"""What two connectors share: AMQP 1.0, Azure's login and its processors' checkpoints."""
