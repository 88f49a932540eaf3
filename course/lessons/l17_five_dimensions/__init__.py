"""Lesson 17."""
