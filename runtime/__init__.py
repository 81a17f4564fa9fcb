"""The outside world, behind interfaces: the clock, chance, disks, the network, object stores. All of it in
one bundle: bundle.py."""
