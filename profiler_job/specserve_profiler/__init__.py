"""Measures which number of draft tokens K is best at each batch size, on the accelerator where it runs."""

__version__ = "0.1.0"
