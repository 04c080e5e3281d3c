"""Sums without the summands (Bonawitz et al. 2017): keys, shares, masks, and both ends of a masked round."""
