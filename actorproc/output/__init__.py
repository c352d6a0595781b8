"""What a processor leaves behind: the commit chain, checkpoints, dead letters, and how they are read back."""
