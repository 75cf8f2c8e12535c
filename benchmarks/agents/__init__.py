"""Agents and conversations, which read the same documents again."""
