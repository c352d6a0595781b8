"""The files in deploy/: accepted by the tools that read them, and enough for the programs that they start."""
