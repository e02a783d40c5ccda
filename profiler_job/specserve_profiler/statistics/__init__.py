"""What to measure next, when enough is known, and what the steps say, each figure with its interval. Pure.

Samplers and estimators; the engine's driver and the tests' simulator drive the same ones. Standard library only, not
numpy: the operator may import this room, and so may a process beside a served engine that has 64 MiB. Imports
``contract`` and ``dialect``, never ``engine``: what a step is stands in ``contract.steps``.
"""
