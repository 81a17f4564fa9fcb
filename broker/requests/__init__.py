"""The course of a request between its connection and its handler, and what a request may wait for."""
