"""The files of an output in DVC's remote, so that a part of them can be read there."""

import json
from dataclasses import dataclass
from typing import Any

from pipeline.base.errors import Fault, UserError, missing, one_line, without_secrets


@dataclass(frozen=True)
class Place:
    """Where DVC's remote has the files of an output that is a folder."""

    files: Any  # the file system, one of fsspec's, with the credentials of DVC's config
    paths: dict[str, str]  # the path of each file in the folder → its path in `files`
    listing: str  # the path of DVC's list of these files: DVC sends no file of a folder whose list is there
    shown: str  # the remote's address without secrets


def locate(folder: str) -> Place:
    """The files of this output, as dvc.lock has it, in DVC's default remote.

    Raises UserError if there is no such remote, it does not answer, or it does not have the output.
    """
    from dvc.config import NoRemoteError
    from dvc.dvcfile import Lockfile
    from dvc.repo import Repo  # takes a second

    remedy = f"dvc remote list shows what there is; on the machine that has it: dvc push {folder}"
    try:
        with Repo() as repo:
            stages = Lockfile(repo, "dvc.lock").load()["stages"].values()
            outs = {out["path"]: out["md5"] for stage in stages for out in stage["outs"]}
            if folder not in outs:
                raise missing(folder, "git pull, or perennial repro prepare and dvc push", "not in dvc.lock")
            store = repo.cloud.get_remote_odb(command="stream")
            files, shown = store.fs.fs, without_secrets(store.fs.unstrip_protocol(store.path))
            listing = store.oid_to_path(outs[folder])
            entries = json.loads(files.cat_file(listing))
            return Place(
                files, {entry["relpath"]: store.oid_to_path(entry["md5"]) for entry in entries}, listing, shown
            )
    except UserError:
        raise
    except (FileNotFoundError, NoRemoteError) as error:
        raise UserError(Fault(folder, "not in DVC's remote", "missing", one_line(error), remedy=remedy)) from None
    except Exception as error:  # of DVC, and of any of fsspec's packages
        raise UserError(Fault(folder, "DVC's remote", "failed", one_line(error), remedy=remedy)) from None
