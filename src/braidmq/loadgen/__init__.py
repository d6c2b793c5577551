"""A load generator for brokers of AMQP 0-9-1 and MQTT, on our own kernels."""
