"""The report: one HTML page with everything that a person asks after a run."""
