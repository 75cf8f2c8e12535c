"""Point clients to the proxy where a response's headers name the backend, as redirects do."""

from urllib.parse import SplitResult, urlsplit, urlunsplit

LOCATIONS = (b"location", b"content-location")


def client_location(value: bytes, *, backend_url: str, mount: str = "") -> bytes:
    """Return the value of a `location` for the client: a path of the proxy if the value is an
    address of the backend, else the value itself.

    Args:
        backend_url: base URL of the backend that responded.
        mount: path below which the proxy is served.
    """
    try:
        parts, backend = urlsplit(value.decode("latin-1")), urlsplit(backend_url)
        if parts.netloc and _server(parts) != _server(backend):
            return value
    except ValueError:
        return value
    is_path = not parts.scheme and parts.path.startswith("/") and bool(backend.path or mount)
    if not (parts.netloc or is_path):
        return value
    path = parts.path or "/"
    if backend.path and (path + "/").startswith(backend.path + "/"):
        path = path.removeprefix(backend.path)
    path = mount + "/" + path.lstrip("/")  # two slashes would begin with a host
    return urlunsplit(("", "", path, parts.query, parts.fragment)).encode("latin-1")


def _server(parts: SplitResult) -> tuple[str, int | None]:
    """Return host and port, which a backend behind TLS may name with the port of plain HTTP."""
    port = None if parts.port in (80, 443) else parts.port
    return (parts.hostname or "").removesuffix("."), port
