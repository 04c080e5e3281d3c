"""The study of bridges: federated detectors on recordings of healthy and damaged structures."""
