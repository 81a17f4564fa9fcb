"""Quorums of real ControllerNodes on simulated disks, clocks and a message network (docs/simulator.md)."""
