"""The Delta connector: the folder of the output is a Delta table, by a log beside its files.

The log is written by this connector itself, through the store of the processor: an entry of a Delta log is a numbered
file that is created if it is absent, as a commit of ours is. So the outcome of each transaction is known, also after a
lost reply, any store will do, and no library repeats anything. Only readers need one.
"""

from actorproc.connectors.delta.sink import DeltaTable

__all__ = ["DeltaTable"]
