"""Code that runs inside an engine's process and reports cache events. Needs msgspec only, so that
it installs beside an engine with `--no-deps`. Does not know documents."""
