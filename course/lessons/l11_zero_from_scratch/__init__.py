"""Lesson 11."""
