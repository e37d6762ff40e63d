"""Figures of quality: what a recipe reaches, and what a rule of the data brings."""
