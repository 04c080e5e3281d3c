"""The page: what an operator sees and orders in a browser, served by a process of its own that reads the store."""
