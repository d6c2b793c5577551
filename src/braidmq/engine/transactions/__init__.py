"""Who published what, once; and what becomes visible together or not at all."""
