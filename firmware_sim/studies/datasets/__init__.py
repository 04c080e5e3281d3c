"""Data sets of the studies: each a function that reads the files of one, in the layout that the docs describe."""
