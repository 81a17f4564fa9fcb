"""What `millrace cluster` is made of: a cluster as its clients are told of it (client.py, view.py), how
partitions move in it (moves.py, mover.py), and the plan of one that runs on this machine (plan.py)."""
