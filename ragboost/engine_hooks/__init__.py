<<<<<<< HEAD
"""Code that runs inside an engine's process: cache events, and the plug-ins that report them.

Needs msgspec only, so that it installs beside an engine with `--no-deps`.
"""
=======
"""Code that runs inside an engine's process and reports cache events. Needs msgspec only, so that
it installs beside an engine with `--no-deps`. Does not know documents."""
>>>>>>> thin-wing
