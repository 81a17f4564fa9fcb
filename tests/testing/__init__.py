"""millrace.testing: a real broker in a test, and what is left of it (nothing)."""
