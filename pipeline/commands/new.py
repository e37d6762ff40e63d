"""Make a project: the files of this release of Perennial in a folder of its own, with Git and a first commit.

    perennial new FOLDER

The files are those of the last commit of the installation: of the folder whose code runs. If that is a project itself,
they are those of its release. No network is needed. The project gets an environment of its own by `make setup`.
"""

import shlex
from argparse import Namespace
from pathlib import Path

from pipeline.base import errors, files
from pipeline.base.errors import Fault, UserError
from pipeline.versioning import releases

INSTALLATION = Path(__file__).parents[2]
README = """# {name}

A project of image classification. Its code is that of Perennial {version}.

```bash
make setup && . .venv/bin/activate                # once: the environment
perennial start quick --photos /path/to/photos    # settings for this machine and these photos
perennial repro                                   # trains the model, and tests it
```

`params.yaml` has the settings, and `perennial` alone lists the commands.
The documents are in `docs/` of the repository of Perennial.
"""


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder that has files, or that is in a project, or in which DVC cannot work."""
    errors.check_folder("FOLDER", folder)
    allowed = "a new or an empty folder, outside of other projects"
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        reason = "it is not empty" if folder.is_dir() else "it is a file"
        raise UserError(Fault("FOLDER", str(folder), "value", reason, allowed))
    for above in folder.parents:
        if (above / releases.CODE / "__main__.py").is_file():
            raise UserError(Fault("FOLDER", str(folder), "value", f"it is in the project {above}", allowed))


def create(folder: Path) -> releases.Release:
    """Make the project in a new or an empty folder. Returns its release. What a failure leaves is removed."""
    source = releases.source_of(INSTALLATION)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        release = releases.write_files(source, folder)
        readme = README.format(name=folder.name, version=release.version)
        (folder / releases.OWN[0]).write_text(readme, encoding="utf-8")
        releases.git("init", "--quiet", cwd=folder)
        first = releases.commit(folder, folder, release.name)
        releases.git("update-ref", f"refs/heads/{releases.BRANCH}", first, cwd=folder)
        releases.git("reset", "--quiet", first, cwd=folder)
    except BaseException:
        for path in (folder,) if is_new else [*folder.iterdir()]:
            files.remove(path)
        raise
    return release


def main(arguments: Namespace) -> int:
    """Make the project, and print what to type next. Returns 0. Raises UserError."""
    folder = Path(arguments.folder).resolve()
    check_folder(folder)
    release = create(folder)
    print(f"{folder} is a project of {release.name}, with a first commit. Next:")
    print(f"  cd {shlex.quote(str(folder))} && make setup && . .venv/bin/activate")
    print("  perennial start quick --photos /path/to/photos")
    return 0
