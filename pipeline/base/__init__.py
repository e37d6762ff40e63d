"""Used by every layer: errors, atomic files, DVC's files, schemas, system calls. Imports no other layer."""
