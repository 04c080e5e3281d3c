"""Echo state networks: readouts, memory, and what is beside them."""
