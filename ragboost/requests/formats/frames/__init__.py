"""Find the documents of a text by the structure that they repeat, without knowing the application.

Each file finds one kind of mark; the outermost list is the frame, and what it contains is content.
"""

from ragboost.requests.formats.frames.scanner import Scan, may_hold_list, scan

__all__ = ["Scan", "may_hold_list", "scan"]
