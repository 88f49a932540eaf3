"""Lesson 07."""
