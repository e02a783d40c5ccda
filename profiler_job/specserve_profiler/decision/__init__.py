"""From measurements to what is served: goodput, table, graphs, verdict, and what to know of it. Pure.

Imports ``statistics`` and what is below it.
"""
