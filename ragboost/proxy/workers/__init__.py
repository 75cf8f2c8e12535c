"""Other processes of the proxy, on this machine and others: their load, prompts, conversations.

Workers (over ZeroMQ sockets) and replicas (over a Redis channel) exchange the same `messages`,
which a `MessageHandler` applies. Only workers hand over conversations, through the `WorkerPool`.
"""
