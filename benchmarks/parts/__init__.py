"""What single benchmarks compute with: models of a link and of DeepSpeed."""
