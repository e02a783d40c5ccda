"""Wake, observe, decide, apply: the operator's one loop, and all of its input and output."""
