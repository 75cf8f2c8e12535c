"""RAGBoost inside other frameworks, one folder or file each.

Each framework is imported in its own place only and comes with the extra of its name:
`pip install 'ragboost[langchain]'`, `[llama-index]`, `[litellm]`, `[ray]`.
"""
