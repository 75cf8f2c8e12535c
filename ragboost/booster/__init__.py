"""Order, de-duplicate and hint the documents of requests: where index, ordering, dedup and hints meet.

Names are imported on first use, so that the session types load no numpy.
"""
