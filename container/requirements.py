"""The dependencies in pyproject.toml, one on a line: a layer of their own, kept between builds."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
print("\n".join(project["dependencies"]))
