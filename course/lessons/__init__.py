"""The lessons: one folder each, with its source, exercises, figures and what its ranks run."""
