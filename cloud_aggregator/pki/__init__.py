"""Keys and certificates of a site, and the broker that goes by them."""
