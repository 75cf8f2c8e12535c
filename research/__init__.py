"""Mechanisms of papers that the product does not serve. Tested, and not part of the wheel."""
