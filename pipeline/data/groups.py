"""Groups that the user names, such as the images of one patient or one video: a group is in one split.

The column `group` of labels.csv names them, and `split.group` finds them in the paths: with `folder` the folder below
the class folder, with a regular expression the text of its one capture group. The same name in two classes is the same
group. An image without a name is a group of its own.
"""

import hashlib
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence

from pipeline.base import children
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import visible
from pipeline.data.layout import ImageFile, Layout, count_with_verb

SEARCH_SECONDS = 60  # of processor time, for all paths; a usual expression takes less than a second for 100,000 paths
SEARCH = """
import json, re, resource, sys
seconds, expression, paths = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
most = resource.getrlimit(resource.RLIMIT_CPU)[1]
resource.setrlimit(resource.RLIMIT_CPU, (seconds if most == resource.RLIM_INFINITY else min(seconds, most), most))
search = re.compile(expression).search
for path in paths:
    match = search(path)
    print(json.dumps(match[1] or "" if match else ""), flush=True)
"""

Names = list[tuple[str, ...]]  # the groups that each image is in


def named_groups(layout: Layout, setting: str) -> Names:
    """The groups that each image of a layout is in. Raises UserError if `setting` does not fit the layout."""
    in_paths = _names_in_paths(layout, setting)
    return [
        tuple(f"{source} {name}" for source, name in (("column", file.group), ("path", in_path)) if name)
        for file, in_path in zip(layout.image_files, in_paths, strict=True)
    ]


def _names_in_paths(layout: Layout, setting: str) -> list[str]:
    """The name of the group in the path of each image; empty if there is none."""
    paths = [file.path for file in layout.image_files]
    if setting == "none":
        return [""] * len(paths)
    if setting == "folder":
        if layout.class_depth is None:
            reason = f"the paths of {layout.kind} have no class folder"
            allowed = f"none, a regular expression, or a column group in {layout.kind}"
            raise UserError(Fault("split.group", "folder", "pair", reason, allowed))
        depth = layout.class_depth + 1
        return [path.split("/")[depth] if path.count("/") > depth else "" for path in paths]
    return _search_paths(paths, setting)


def _search_paths(paths: Sequence[str], expression: str) -> list[str]:
    """The text of the capture group in each path; empty if the expression does not match.

    The time of a search can grow exponentially with the length of a path, and Python cannot interrupt it. So another
    process searches, and the system limits its processor time. Raises UserError at the limit.
    """
    question = json.dumps([SEARCH_SECONDS, expression, paths])
    command = [sys.executable, "-I", "-S", "-c", SEARCH]
    pipe = subprocess.PIPE
    with children.start(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as search:
        try:
            answer, messages = search.communicate(question)
        finally:
            search.kill()  # after Ctrl-C
    names = [json.loads(line) for line in answer.splitlines()]
    if search.returncode == -signal.SIGXCPU:
        reason = f"its search took more than {SEARCH_SECONDS} seconds, and reached {paths[len(names)]!r:.100}"
        allowed = "an expression without a repetition inside a repetition"
        raise UserError(Fault("split.group", f"{expression!r:.100}", "value", reason, allowed))
    if search.returncode:
        raise RuntimeError(f"split.group: the search ended with {search.returncode}: {messages[-1000:]}")
    return names


def rows_by_group(names: Names) -> dict[str, list[int]]:
    """Name of a group → the numbers of its images."""
    rows = defaultdict(list)
    for row, image_groups in enumerate(names):
        for name in image_groups:
            rows[name].append(row)
    return dict(rows)


def identities(names: Names, pixels: Sequence[str]) -> list[str]:
    """The hash of each image from which its group gets its key: of the group's name; without a name, of the pixels.

    So a named group keeps its key, and its split, when an image is added to it.
    """
    return [
        min((hashlib.sha256(name.encode()).hexdigest() for name in image_groups), default=pixel_hash)
        for image_groups, pixel_hash in zip(names, pixels, strict=True)
    ]


def report(image_files: Sequence[ImageFile], names: Names, splits: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """Counts for findings.csv, and sentences for the user, of images with these groups and splits."""
    rows = rows_by_group(names)
    ungrouped_images = [file.path for file, image_groups in zip(image_files, names, strict=True) if not image_groups]
    divided_groups = [name for name in sorted(rows) if len({splits[row] for row in rows[name]}) > 1]
    notes = [f"groups: {len(rows):,}" if divided_groups else f"groups: {len(rows):,}, each in one split"]
    if ungrouped_images:
        subject = count_with_verb(len(ungrouped_images), "image", "images")
        notes.append(f"{subject} in no group, and a group by itself (first: {visible(ungrouped_images[0])})")
    if divided_groups:
        subject = count_with_verb(len(divided_groups), "group", "groups")
        notes.append(f"{subject} in more than one given split (first: {visible(divided_groups[0].partition(' ')[2])})")
    return {"named": len(rows), "images_without": len(ungrouped_images), "across_splits": len(divided_groups)}, notes
