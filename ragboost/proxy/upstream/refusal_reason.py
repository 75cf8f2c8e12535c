"""Say why there is no connection, without an address: clients are told, too."""

import os
import socket
from ssl import SSLError


def refusal_reason(error: OSError) -> str:
    """Return the reason in a few words."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, SSLError):
        return f"TLS: {error.reason or 'no handshake'}"
    return os.strerror(error.errno).lower() if error.errno else "no address of it accepts one"
