"""A page as its elements and their text, for tests that compare values."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("meta", "link", "img", "br")  # elements without an end
INLINE = ("b", "bdi", "code", "a")  # no space is seen around them


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    def all(self, tag: str = "", **attributes: str) -> list["Element"]:
        """The elements inside with this tag and these attributes (`class_`: one of its classes), in their order."""
        return [one for one in self._below() if tag in ("", one.tag) and one._has(attributes)]

    def one(self, tag: str = "", **attributes: str) -> "Element":
        """The only such element."""
        (element,) = self.all(tag, **attributes)
        return element

    @property
    def text(self) -> str:
        """What a reader sees, in one line."""
        return re.sub(r"[ \n]+", " ", self._raw()).strip(" ")

    @property
    def cells(self) -> list[list[str]]:
        """The texts of the rows of a table, without its head."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)] for row in self.one("tbody").all("tr")
        ]

    def table(self, caption: str) -> list[list[str]]:
        """The rows of the only table whose caption begins so."""
        (table,) = [one for one in self.all("table") if one.one("caption").text.startswith(caption)]
        return table.cells

    def _below(self) -> Iterator["Element"]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._below()

    def _has(self, attributes: dict[str, str]) -> bool:
        own = self.attributes | {"class_": self.attributes.get("class", "")}
        return all(
            value in own[key].split() if key == "class_" else own.get(key) == value for key, value in attributes.items()
        )

    def _raw(self) -> str:
        parts = [child if isinstance(child, str) else child._raw() for child in self.children]
        return "".join(parts) if self.tag in INLINE else f" {''.join(parts)} "


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(page: str) -> Element:
    """The elements of a page. Each that begins must end, in its order."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    (root,) = parser.open
    return root
