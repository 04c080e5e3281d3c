"""Support vector detectors: one-class SVM and SVDD, with an RBF or a linear kernel, alone or as an ensemble."""
