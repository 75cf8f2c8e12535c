"""Measure what chunk reuse does to answers, and keep it within a budget."""
