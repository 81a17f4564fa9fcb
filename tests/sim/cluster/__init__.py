"""Whole clusters in the simulator: controllers, brokers and clients, real processes on simulated edges."""
