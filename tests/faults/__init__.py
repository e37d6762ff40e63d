"""Faults of real runs: killed, frozen and failing processes, full disks, power cuts. Each file is a program."""
