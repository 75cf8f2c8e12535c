"""Mechanisms of papers, and reference implementations, that the product does not serve. Tested, and
not part of the wheel."""
