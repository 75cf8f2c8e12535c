"""Learn from traffic where documents end that their text does not delimit.

Knows digests of lines, no texts. Does not know bodies or messages.
"""

from ragboost.requests.formats.evidence.evidence import DocumentSpan, Evidence

__all__ = ["DocumentSpan", "Evidence"]
