"""What single benchmarks compute with: the model of a link."""
