"""What has to follow when something goes or changes.

Owners register what they do then; whoever makes the change runs the hooks and does not know them.
"""

from collections.abc import Callable

from braidmq.engine.topics import PartitionView, Topic


class Hooks:
    def __init__(self) -> None:
        self.topic_deleted: list[Callable[[Topic], None]] = []
        """It is gone with its subscriptions. Another of its name may be there already."""
        self.namespace_deleted: list[Callable[[str, int], None]] = []
        """Namespace and time. Nobody finds its topics any more; each of them follows by itself."""
        self.policy_changed: list[Callable[[Topic, int], None]] = []
        self.partitions_changed: list[Callable[[Topic, int], None]] = []
        """There are more of them, or some that were taken away are closed."""
        self.recounting: list[Callable[[PartitionView], None]] = []
        """The messages of a view are about to be counted again: whoever has some of them in hand
        finishes with them first."""
        self.unattended: list[Callable[[Topic, int], None]] = []
        """Messages are about to come to a topic that nobody subscribes to."""
        self.overflowing: list[Callable[[Topic, int], None]] = []
        """Messages arrived at a topic with limits that drops its oldest."""
