"""What the ranks do in MPI, noted where another process can read it."""
