"""Trainings with other params in work copies, and what they say together. No stage imports it."""
