"""A load generator for any AMQP 0-9-1 broker, on our own kernels."""
