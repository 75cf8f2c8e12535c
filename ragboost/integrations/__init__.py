"""RAGBoost inside other frameworks, one folder each.

Each folder alone imports its framework, which comes with the extra of the same name:
`pip install '.[langchain]'`, `[llama-index]`, `[litellm]`, `[ray]`.
"""
