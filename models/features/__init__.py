"""Windows to features: what can be measured in a window, and the specification that travels with a model."""
