"""Test suites that clients' own authors wrote, from their packages, run against a live broker: `make
client-suites`."""
