"""An algorithm and a detector for fedgate."""
