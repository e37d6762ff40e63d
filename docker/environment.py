"""Print what an image is built from, as JSON: the SHA-256 of every file named. `pipeline/checks/machine.py` reads it.

python3 environment.py requirements/lock.txt docker/pins.env > environment.json
"""

import hashlib
import json
import sys
from pathlib import Path

print(json.dumps({name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in sys.argv[1:]}, indent=2))
