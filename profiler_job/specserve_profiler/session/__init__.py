"""One profile from beginning to end: boots, stages, cohorts and closed loops within a time that is kept.

Runs inside the engine's image. Imports every room but ``reports`` and ``cli``, which are not there.
"""
