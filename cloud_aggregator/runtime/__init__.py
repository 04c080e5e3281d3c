"""The processes of the aggregator: the loop that carries events and effects, and the threads beside it."""
