"""Figures of lesson 06."""
