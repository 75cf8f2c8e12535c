"""The commands `eval-reuse` and `precompute`: read files, run, and return the text to
print."""
