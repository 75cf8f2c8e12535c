"""Prompts from knowledge graphs."""
