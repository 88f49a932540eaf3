"""One file per claim: `python -m benchmarks.NAME` measures ours and the peer in one run; see harness.py."""
