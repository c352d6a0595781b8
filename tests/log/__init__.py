"""The built-in log: producer, files, source."""
