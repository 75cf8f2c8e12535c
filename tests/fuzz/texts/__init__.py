"""Random texts with documents in them: contents, layouts, templates, and the oracle for them."""
