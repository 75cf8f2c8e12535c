"""Serve an ASGI application: uvicorn's server, with HTTP/1.1 connections of our own."""

from ragboost.proxy.serving.server import bind, serve, serve_in_thread

__all__ = ["bind", "serve", "serve_in_thread"]
