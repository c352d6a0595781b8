"""Chaos: real host and producer processes on a real store, killed, paused and stopped at random, then every record
counted."""
