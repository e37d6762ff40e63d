"""Say whether pipeline/ has the code of the release that perennial.json names. Exit status 1: it differs.

Every file of pipeline/ that Git does not ignore is compared, also before it is committed.
"""

import sys
from argparse import Namespace

from pipeline.versioning import releases


def main(_: Namespace) -> int:
    release, changed = releases.read(), releases.changed_code()
    about = f"Perennial {release.version}, commit {release.commit}"
    if not changed:
        print(f"{releases.CODE}/ is that of {about}")
        return 0
    print(f"{releases.CODE}/ is not that of {about}:", file=sys.stderr)
    print(*changed, sep="\n")
    return 1
