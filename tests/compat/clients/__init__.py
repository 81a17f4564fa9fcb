"""The clients of the matrix: one module each, all with the same four verbs (see client.py)."""
