"""The study of distributionally robust SVMs over gateways."""
