"""Where a message goes: exchanges with bindings, and filters with subscribers."""
