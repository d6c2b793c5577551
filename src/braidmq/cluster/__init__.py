"""Replication of a shard: who leads, what is committed, where to cut. A single node has none."""
