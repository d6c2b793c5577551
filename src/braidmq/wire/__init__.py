"""Codecs of the protocols: bytes to values and back, without I/O. Imports only ``model``."""
