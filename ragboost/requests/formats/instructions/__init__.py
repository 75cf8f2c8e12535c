"""Read the texts around a list of documents: what they ask of it, and if a question follows it."""
