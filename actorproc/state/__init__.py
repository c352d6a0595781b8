"""Keyed state of a partition: committed beside the output, restored by the next owner, readable by anybody."""
