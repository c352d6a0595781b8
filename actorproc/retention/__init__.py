"""Which data must be kept: the readers of a dataset or log, and the boundary below which numbers are void."""
