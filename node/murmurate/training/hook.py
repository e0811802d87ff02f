"""A hook on a model that concerns this node alone."""

from __future__ import annotations

from typing import Any

import torch


class Hook:
    """A function that stays behind when the model is copied or pickled: a copy is not watched."""

    def __init__(self, act: Any = None) -> None:
        self._act = act

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *words: Any) -> None:
        if self._act is not None:
            self._act(*words)

    def __deepcopy__(self, _: Any) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()
