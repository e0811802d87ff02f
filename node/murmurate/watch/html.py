"""A page for people, whole: nothing in it is loaded from elsewhere."""

from __future__ import annotations

from importlib import resources

HTML = "text/html; charset=utf-8"


def html(package: str) -> bytes:
    """`page.html` of a package, with the style and the functions that all pages have in common."""
    text = resources.files(package).joinpath("page.html").read_text(encoding="utf-8")
    for name in ("look.css", "look.js"):
        common = resources.files("murmurate.watch").joinpath(name).read_text(encoding="utf-8")
        text = text.replace(f"/* {name} */\n", common)
    return text.encode()
