"""The study of federated readouts of echo state networks, beside other ways to them."""
