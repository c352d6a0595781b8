"""The partition actor: reads a partition, calls the handler over its batches and commits the results."""
