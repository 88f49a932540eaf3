"""What the benchmark of abstractive summaries needs: the articles, the training, and the writing."""
