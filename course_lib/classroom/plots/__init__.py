"""Every figure of the course. Plain numbers in, a `Picture` with alt text out; no MPI, no torch."""
