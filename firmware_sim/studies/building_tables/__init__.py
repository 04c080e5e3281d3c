"""The study of tables of building sensors."""
