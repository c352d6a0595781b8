"""The stored results of a processor: the commit chain, checkpoints, dead letters, and how they are read back."""
