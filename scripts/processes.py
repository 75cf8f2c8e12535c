"""End a script by its own way out when it is asked to stop, so that it stops what it started."""

import atexit
import signal
import sys

import psutil

_STOP_S = 10.0


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exit: `with` and `finally` then stop the processes started there.

    Call it in the main thread, before the first process is started.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    atexit.register(_stop_children)


def _stop_children() -> None:
    """Stop a process that was just being started when the signal came: nobody else knows it."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.terminate()
    _, alive = psutil.wait_procs(children, timeout=_STOP_S)
    for child in alive:
        child.kill()
