"""End a script by its own way out when it is asked to stop, so that it stops what it started."""

import signal
import sys


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exit: `with` and `finally` then stop the processes started there.

    Call it in the main thread, before the first process is started.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
