"""Lesson 16."""
