"""Figures of lesson 04."""
