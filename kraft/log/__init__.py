"""The metadata log and the small files beside it, on disk."""
