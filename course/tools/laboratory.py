"""Holds a lesson to the laboratory's rules: code in sight, a program to take home, twenty minutes.

LABORATORY names the lessons that were written by these rules. It only grows; when it has all, the older
rules that it switches off go.
"""

LABORATORY = ("06",)
