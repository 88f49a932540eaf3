"""Lesson 09."""
