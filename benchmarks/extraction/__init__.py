"""Summaries made of an article's own sentences: features, model, scores. No communication."""
