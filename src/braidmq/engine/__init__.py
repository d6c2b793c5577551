"""What happens to a message between its gateway and the store."""
