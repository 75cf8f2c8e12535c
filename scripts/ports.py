"""Free ports for servers that a script or a test starts."""

import atexit
import socket
from random import SystemRandom

_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """Return a TCP port on loopback on which no server listens, and which nobody else is given.

    It is below the ephemeral range, from which clients and servers on port 0 draw theirs. Until
    this process ends it holds the UDP port of the same number: other processes that ask here at
    the same time, before the server listens, get another one.

    Raises:
        RuntimeError: a hundred ports were tried.
    """
    for port in SystemRandom().sample(_PORTS, 100):
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as listener:
            try:
                holder.bind(("127.0.0.1", port))
                listener.bind(("127.0.0.1", port))
            except OSError:
                holder.close()
                continue
        atexit.register(holder.close)
        return port
    raise RuntimeError(f"no free port in 100 of {_PORTS.start} to {_PORTS.stop}")
