"""What a node counts, as Prometheus reads it."""
