"""The engine's processes, its API, its log, and the scheduler of ours inside it.

``probe`` runs in the engine's own process, and is the only module of specserve that imports vLLM. Imports ``contract``
and ``dialect``: what to measure is not for this room to say.
"""
