"""Models: made from parameters, signed, given to a few gateways or to all, and what gateways report of them."""
