"""Lesson 14."""
