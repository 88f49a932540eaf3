"""Figures of several lessons. They draw what they are given, with neither MPI nor torch."""
