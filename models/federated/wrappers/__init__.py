"""Any algorithm with a step more: features compensated or whitened, updates noised or smaller, levels of a site."""
