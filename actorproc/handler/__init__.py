"""`PartitionHandler`, which users subclass, and the objects that it gets to work on a batch."""
