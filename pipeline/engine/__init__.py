"""Training steps on one or several processes: distributed, precision, parallel, agreement, stopping."""
