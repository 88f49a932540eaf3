"""What the papers predict. Pure Python: no MPI, no torch."""
