"""Hash every prefix of a list of messages.

The last hash identifies a whole history and changes with any of its messages. Knows the digests of
the messages' bytes. Does not know what is stored under a hash.
"""

import hashlib
from collections.abc import Sequence

Link = bytes
"""Hash of a list of messages, from which the hash with one more message is made."""


def chain_links(messages: Sequence[bytes], *, seed: bytes = b"") -> list[Link]:
    """Return the link of every prefix of a list of messages.

    Args:
        messages: a digest of each message's bytes.
        seed: whatever must be equal beside the messages.
    """
    links = []
    link = hashlib.sha256(seed).digest()
    for message in messages:
        link = hashlib.sha256(link + message).digest()
        links.append(link)
    return links
