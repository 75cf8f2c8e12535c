"""Measure the quality loss and the time saved by chunk reuse on a user's prompts."""
