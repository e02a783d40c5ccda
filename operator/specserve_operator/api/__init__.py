"""Models: the resource, its names, and what the operator sees of a cluster. Pure; imports nothing of the operator."""
