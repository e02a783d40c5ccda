"""Benches behind the figures of docs/method.md: what the method saves, what its tables are worth, how they repeat."""
