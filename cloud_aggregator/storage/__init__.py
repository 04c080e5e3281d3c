"""The aggregator's store: its tables, and rows in and out."""
