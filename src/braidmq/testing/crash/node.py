"""``braid serve`` whose life ends as the fault in ``CRASH_LAB_FAULT`` says.

SIGUSR1 is the power cut at a random moment: the lab sends it when the traffic is over.
"""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec

from braidmq import server
from braidmq.cli import main
from braidmq.testing.crash.disks import PowerCutDisk, Trigger, TriggeredDisk, kill_self
from braidmq.testing.crash.faults import Fault

ENVIRONMENT = "CRASH_LAB_FAULT"


def _install(fault: Fault) -> None:
    triggers: list[Trigger] = []

    def open_disk(root: Path) -> Any:
        if not fault.is_power_cut:
            triggers.append(Trigger(fault, kill_self))
            return TriggeredDisk(root, triggers[-1])
        disk = PowerCutDisk(root, fault)
        triggers.append(disk.trigger)
        threading.Thread(target=_cut_when_told, args=(disk,), daemon=True).start()
        return disk

    say = server.say

    def say_and_arm(line: str) -> None:
        if line == "ready":
            for trigger in triggers:
                trigger.arm()
        say(line)

    vars(server).update(RealDisk=open_disk, say=say_and_arm)


def _cut_when_told(disk: PowerCutDisk) -> None:
    signal.sigwait({signal.SIGUSR1})
    disk.cut()


if __name__ == "__main__":
    # Blocked before any thread is made: all inherit it, and only the one that waits gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    _install(msgspec.json.decode(os.environ[ENVIRONMENT], type=Fault))
    main()
