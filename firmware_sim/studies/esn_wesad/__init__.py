"""The study of echo state networks on the WESAD recordings."""
