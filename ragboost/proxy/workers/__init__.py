"""Other processes of the proxy, on this machine and others: their load, prompts, conversations.

The workers of one proxy, and its replicas on other machines, exchange the same `messages`, which a
`MessageHandler` applies. Two transports carry them: ZeroMQ sockets between workers, a Redis channel
between replicas. Only workers hand over conversations, through the `WorkerPool`.
"""
