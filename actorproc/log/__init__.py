"""The built-in partitioned log: its files and documents, and how readers learn of new ones."""
