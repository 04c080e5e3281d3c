"""Who belongs to the site, and whether one device or two speak under a name."""
