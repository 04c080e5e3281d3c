"""The processes of the agent: the loop that carries events and effects, and the children that it starts."""
