"""What single benchmarks compute with: a model of a link, DeepSpeed's engine."""
