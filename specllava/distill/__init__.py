"""Training: one loop on accelerate, its losses, and the data that feed it."""
