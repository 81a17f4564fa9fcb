"""What the committed log comes to: images, deltas and snapshots."""
