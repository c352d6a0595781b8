"""Sinks: other systems that get the committed rows of a processor."""
