"""Lesson 00."""
