"""What a broker measures and shows on /metrics."""
