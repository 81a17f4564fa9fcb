"""What may be set, where settings come from, what they mean together, and what changes while a broker
runs."""
