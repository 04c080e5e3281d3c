"""The data of the studies: a reader for each data set, converters from what publishers hand out, and a tiny folder."""
