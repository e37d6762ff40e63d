"""Print the params of this folder as JSON, with the default values of settings that the file lacks."""

import sys
from argparse import Namespace

from pipeline.base.errors import without_secrets
from pipeline.config import params


def main(_: Namespace) -> int:
    config = params.load()
    if note := params.missing_settings():
        print(f"params: {note}", file=sys.stderr)
    print(without_secrets(config.model_dump_json(indent=2)))
    return 0
