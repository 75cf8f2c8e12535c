"""Other replicas of the proxy: their load on the backends, and the prompts they have sent.

They exchange `messages` over a Redis channel, which a `MessageHandler` applies.
"""
