"""Chaos: real hosts and producers on a real store, killed, paused and stopped at random; every record is counted."""
