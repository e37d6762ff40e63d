"""What every layer uses: errors, files, DVC's own files, schemas, system calls. It imports no other layer."""
