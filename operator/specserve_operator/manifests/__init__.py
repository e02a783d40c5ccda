"""Child objects as plain functions: models in, JSON objects out. Golden files in tests/manifests show them whole."""
