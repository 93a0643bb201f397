"""YAML as text to values: without code execution, and without what a few bytes can blow up.

Anchors and aliases are fine. A document whose aliases contain themselves, or that would unfold to more values than any
configuration has, is refused before anything is made of it.
"""

import re
from typing import Any

import yaml

MOST_VALUES = 100_000  # with every alias written out
DEEPEST = 50  # lists and mappings inside each other


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # in C where there is one
    """YAML without code execution, in which 1e-3 is a number (YAML 1.1 reads a string)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


class TextLoader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Every value is a text, as it is written: 007 stays 007."""


def load(text: str, loader: type = Loader) -> Any:
    """The values of a document; ValueError, in one line, for whatever is wrong with it."""
    try:
        _check_size(text)
        return yaml.load(text, Loader=loader)
    except (KeyError, AttributeError, IndexError):  # what PyYAML makes of !!bool x, !!timestamp x and !!int ''
        raise ValueError("a value does not fit its tag, such as !!bool") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: 2024-02-30 looks like a date
        raise ValueError(" ".join(str(error).split())[:160]) from None


def _check_size(text: str) -> None:
    """From the parser's events, which are read one by one: neither nesting nor aliases cost memory here."""
    sizes: dict[str, tuple[int, int]] = {}  # of what an anchor names: values, depth
    is_open: set[str | None] = set()
    path: list[tuple[str | None, int, int]] = [(None, 0, 0)]  # of lists and mappings not closed: anchor, values, depth
    for event in yaml.parse(text, Loader=Loader):
        anchor, size, depth = getattr(event, "anchor", None), 0, 0
        if isinstance(event, yaml.CollectionStartEvent):
            path.append((anchor, 1, 1))
            is_open.add(anchor)
            if len(path) > DEEPEST + 1:
                raise ValueError(f"lists and mappings are nested more than {DEEPEST} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size, depth = path.pop()
            is_open.discard(anchor)
        elif isinstance(event, yaml.AliasEvent):
            if anchor in is_open:
                raise ValueError(f"*{anchor} contains itself")
            size, depth = sizes.get(str(anchor), (1, 0))
            anchor = None
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        if anchor is not None:
            sizes[anchor] = (size, depth)
        outer, of_outer, depth_of_outer = path[-1]
        path[-1] = (outer, of_outer + size, max(depth_of_outer, depth + 1))
        if path[-1][1] > MOST_VALUES:
            raise ValueError(f"it unfolds to more than {MOST_VALUES:,} values")
        if len(path) - 2 + path[-1][2] > DEEPEST:
            raise ValueError(f"lists and mappings are nested more than {DEEPEST} deep")
