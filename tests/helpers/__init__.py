"""What several test files need besides fixtures: cheap starts of Python, and copies of the project."""
