"""Code that only experiments use: reference implementations, upper bounds, and the synthetic tasks
that models are trained and measured on. Tested, and not part of the wheel."""
