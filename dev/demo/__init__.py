"""The main job from end to end: measure, serve, notice another accelerator, measure again. ``make demo`` runs it."""
