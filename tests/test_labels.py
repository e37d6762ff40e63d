"""labels.csv gives each image its class, and a line that cannot be right is refused by its number."""

import pytest

from pipeline.data import folders
from pipeline.sources.layout import Layout
from tests.helpers.refusals import refuses

FILES = ["a.png", "b/c.png", "d e,f.JPG"]


def read(content: str, names: list[str] = FILES, top: str = "") -> Layout:
    """The layout of a folder `images` with these files and this table."""
    entries = [*(top + name for name in names), f"{top}labels.csv"]
    return folders.interpret("images", entries, lambda _: content.encode())


@pytest.mark.parametrize(
    "content",
    [
        'label,path\nx,a.png\ny,b/c.png\nx,"d e,f.JPG"\n',
        '\ufeff Path , LABEL \r\n\r\na.png, x\r\n./b/c.png,y \r\n,\r\n"d e,f.JPG",x',
        "\ufeffpath;label\r\na.png;x\r\nb/c.png;y\r\nd e,f.JPG;x\r\n",
        'path,label\nb\\c.png,y\n"d e,f.JPG","x"\n.\\a.png,x',
    ],
)
def test_a_table_is_read_in_every_usual_form(content: str) -> None:
    """Any order of columns and lines, Windows line ends and paths, a BOM, quotes, spaces and empty lines."""
    layout = read(content)
    assert [(file.path, file.label, file.given_split) for file in layout.image_files] == [
        ("a.png", "x", ""), ("b/c.png", "y", ""), ("d e,f.JPG", "x", ""),
    ]  # fmt: skip
    assert (layout.classes, layout.kind, layout.notes, layout.class_depth) == (["x", "y"], "labels.csv", (), None)


def test_a_path_that_can_mean_one_image_only_is_read_as_it() -> None:
    """Each way in which tables differ from their files is counted in a note of its own."""
    names = ["s/cafe\u0301.png", "s/B.PNG", "s/c.jpg", "s/1/d.jpg", "s/e.f.jpg", "s/f.jpg"]
    layout = read("path,label\ns/caf\u00e9.png,x\ns/b.png,y\ns/c,x\nd.jpg,x\nE.F,y\ns/f.jpg,x\n", names)
    assert {file.path for file in layout.image_files} == set(names)
    assert [note.split(": ")[2].split(" ")[0] for note in layout.notes] == ["1", "1", "1", "2"]


def test_paths_without_an_image_are_one_fault() -> None:
    """Also those that may mean several images. Another folder is never taken for one that the path names."""
    names = ["1/a.jpg", "2/a.jpg", "2/b.jpg", "2/b.png", "1/c.jpg"]
    with refuses(("images/labels.csv:2", "value"), ("images/labels.csv:5", "value")) as error:
        read("path,label\na.jpg,x\n2/b,y\na,x\n2/c.jpg,x\n3,x\nc.jpg,y\n", names)
    assert [number in str(error.value) for number in (" 2 more", " 1 more")] == [True, True]


def test_split_and_group_are_optional() -> None:
    """A split in any usual spelling; nothing means that none is given."""
    layout = read('split,path,group,label\nVALID,a.png,7,x\n,b/c.png,,y\nTesting,"d e,f.JPG",p 8,x\n')
    assert [(file.given_split, file.group) for file in layout.image_files] == [("val", "7"), ("", ""), ("test", "p 8")]


def test_what_is_not_used_is_noted() -> None:
    """Columns with other names, and images that are not listed. A table may be inside one folder, with its paths."""
    names = [*FILES, "README.txt", "new.webp"]
    columns, files = read("path,label,width,by\na.png,x,1,me\nb/c.png,y,1,me\n", names).notes
    assert columns.endswith(": width, by")
    assert files.startswith("2 images ")
    assert files.endswith("(first: d e,f.JPG)")
    layout = read("path,label\na.png,x\nb/c.png,y\n", ["a.png", "b/c.png"], top="set/")
    assert [file.path for file in layout.image_files] == ["set/a.png", "set/b/c.png"]
    assert ["'set'" in note for note in layout.notes] == [True]
