"""AMQP 0-9-1 in RabbitMQ's dialect: methods, field tables, content headers, reply codes."""
