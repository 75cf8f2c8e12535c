"""Other workers and replicas of the proxy: what they hold, their load, and the way to them."""
