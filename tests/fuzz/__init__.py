"""Fuzzing of everything that reads bytes from outside: targets.py what is called, seeds.py where it begins,
__main__.py the long run."""
