"""The data of the studies: converters from what publishers hand out, and a tiny folder in the same layouts."""
