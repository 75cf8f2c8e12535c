"""Prompts with paths of a knowledge graph, computed by dependency attention (DepCache)."""
