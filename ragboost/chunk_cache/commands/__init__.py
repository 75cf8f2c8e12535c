"""The commands `eval-reuse`, `tune-alpha` and `precompute`: read files, run, and return the text to
print."""
