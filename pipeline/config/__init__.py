"""The params, what they may be, and what this machine has. No torch up to here."""
