"""torch where its names are only used when something is computed: keys are checked before it is loaded."""

import importlib
from typing import Any


class LazyModule:
    """A module that is imported when one of its names is first asked for."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
