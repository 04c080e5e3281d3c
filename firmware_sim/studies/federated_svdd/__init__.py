"""The study of federated support vector data description."""
