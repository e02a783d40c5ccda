"""Prompts: files and datasets read, every line's form told apart, and given to the engine as tokens.

Imports ``dialect`` and ``contract``. No error and no ``repr`` here ever shows a prompt.
"""
