"""BraidMQ and Spark: the data source ``braid``. Needs ``pip install braidmq[spark]``."""
