"""A sensor node that plays a recording to a gateway."""
