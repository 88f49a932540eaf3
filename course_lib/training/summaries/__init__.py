"""Summaries of articles by a small encoder-decoder: tokens, model, decoding, scores. No communication."""
