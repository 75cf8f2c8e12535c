"""Plan the reuse of stored chunks in a prompt, fill its KV, and store the chunks of its request."""
