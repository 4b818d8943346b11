"""The values that a field may have where its type lists them, for who has sent another one."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")  # of a path: an item of a list or an object, or a field


def listed_values(kind: Any, path: str) -> list[Any]:
    """Of the field at the path (``response_format.type``, ``tools[0].type``) of what is decoded as ``kind``; none where
    it has any other type."""
    return _listed(inspect.type_info(kind), _STEP.findall(path))


def _listed(kind: inspect.Type, path: Sequence[str]) -> list[Any]:
    match kind:
        case inspect.Metadata(type=inner):
            return _listed(inner, path)
        case inspect.UnionType(types=kinds):
            return [value for each in kinds for value in _listed(each, path)]
        case inspect.LiteralType(values=values) if not path:
            return list(values)
        case inspect.StructType(fields=fields) if path:
            named = [field.type for field in fields if field.encode_name == path[0]]
            return [value for each in named for value in _listed(each, path[1:])]
        case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner) if path:
            return _listed(inner, path[1:])
    return []
