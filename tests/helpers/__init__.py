"""What several test files need besides fixtures: starts of Python that cost hundredths of a second."""
