"""Used by every layer: errors, atomic files, schemas, system calls. Imports no other layer."""
