"""The study of echo state networks on streams."""
