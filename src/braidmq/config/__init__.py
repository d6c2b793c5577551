"""What an operator may set: the tables, where they are read from, and their reference."""

from braidmq.config.loading import load
from braidmq.config.settings import Config, NodeSettings, flag_of
from braidmq.net.settings import ListenerSettings

__all__ = ["Config", "ListenerSettings", "NodeSettings", "flag_of", "load"]
