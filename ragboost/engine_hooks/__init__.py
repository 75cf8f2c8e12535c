"""Code that runs inside an engine's process: cache events, and the plug-ins that report them.

Needs msgspec only, so that it installs beside an engine with `--no-deps`.
"""
