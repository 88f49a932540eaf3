"""Optimised forms of what is plain elsewhere: same names, same signatures; the plain form is the oracle.

Lessons show the plain form and may time the fast one; benchmarks time the fast one. Nothing else imports it.
"""
