"""Answers of language models, judged."""
