"""The report, the model card, and the parts of other pages."""
