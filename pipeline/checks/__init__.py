"""Whether params can run on this machine: rules, and facts about the machine."""
