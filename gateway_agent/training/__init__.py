"""A gateway's part in federated rounds."""
