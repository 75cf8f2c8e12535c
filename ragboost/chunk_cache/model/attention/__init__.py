"""Attention of scattered query rows. All backends are exact: a row at position p sees keys at
positions <= p, whatever its index among the rows."""
