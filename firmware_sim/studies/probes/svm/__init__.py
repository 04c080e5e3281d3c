"""Support vectors and linear models: their tables, who attacks them, and who attacks their members."""
