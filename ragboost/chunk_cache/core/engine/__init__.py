"""Shared by the engines that reuse chunks: requests, filling, self-test, access to internals."""
