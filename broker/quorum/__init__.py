"""Nodes of the controller quorum: what they serve, and a process that is one and no broker."""
