"""Shared by several test files: cheap starts of Python, data sets, and copies of the project."""
