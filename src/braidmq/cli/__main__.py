"""``python -m braidmq.cli`` is ``braid``."""

from braidmq.cli.app import main

main()
