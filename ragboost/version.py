"""The version of the package, read by the build and shown by servers and the command line."""

__version__ = "0.1.0"
