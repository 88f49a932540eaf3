"""Figures of lesson 07."""
