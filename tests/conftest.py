"""Property tests run the same examples every time, so that a red run means a change of ours.

``HYPOTHESIS_PROFILE=explore`` draws new ones: run that before trusting a change to a state machine.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# A shell's background jobs are deaf to Ctrl-C, and so would be every program the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
