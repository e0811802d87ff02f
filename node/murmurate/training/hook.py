"""A hook on a model that concerns this node alone."""

from __future__ import annotations

from typing import Any

import torch


def computes_nothing() -> bool:
    """Whether a model is called to be traced, exported or transformed (`torch.func`): whatever is
    written into it then becomes a part of that, or is refused."""
    if torch._C._get_tracing_state() is not None or torch.compiler.is_exporting():
        return True
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


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
