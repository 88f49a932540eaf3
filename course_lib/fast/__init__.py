"""The optimised twins of what is plain in `comm` and `parallel`: same names and signatures, same results."""
