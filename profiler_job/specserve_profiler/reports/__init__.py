"""Profiles and given figures for people: read, compared, told as text.

Pure but for reading the file of given figures. ``page`` has what is drawn; it needs matplotlib and Jinja2, which no
other part does. Imports ``decision`` and what is below it.
"""
