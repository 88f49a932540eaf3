"""Training in one process: data, models, the loop. No communication."""
