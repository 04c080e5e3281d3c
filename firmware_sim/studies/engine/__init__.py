"""What studies share: the record of a study, tables, pictures, and ways to damage or to attack."""
