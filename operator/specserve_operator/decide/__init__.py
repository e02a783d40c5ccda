"""Pure decisions: a frozen snapshot of the cluster in, a plan out."""
