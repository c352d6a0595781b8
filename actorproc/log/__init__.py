"""The built-in partitioned log: its files, and the producer that appends to them."""
