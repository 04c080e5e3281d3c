"""What measures a cell of a study: a module with `Case`, what it is given, and `measure`."""
