"""The rooms of the two packages, read from their imports: a picture and a table for docs/architecture.md."""
