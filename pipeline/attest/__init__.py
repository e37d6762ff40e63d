"""Checks of what a commit claims: its stages, its states, its accuracy on other hardware. No stage imports it."""
