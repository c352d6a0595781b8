"""A package that extends actorproc with a source, a store, a decoder and commands."""
