"""What the proxy costs and what it withstands."""
