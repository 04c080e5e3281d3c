"""Forms of the papers as printed, for comparison: nobody runs them in the field."""
