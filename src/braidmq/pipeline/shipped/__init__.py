"""Pipelines that come with BraidMQ; docs/pipelines/ has a page for each."""
