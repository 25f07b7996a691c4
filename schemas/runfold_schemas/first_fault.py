"""Validation that ends at the first fault.

By default pydantic collects the faults of all items of a list or a dictionary, about 1 KB each. So
a list of 2,500,000 wrong numbers, which is 7.5 MB of JSON, would take 2.7 GB.
"""

from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema


class _FirstFault:
    """Metadata of a type that is a list, a tuple or a dictionary."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # pydantic's own `FailFast` refuses dictionaries before its version 2.14. Those versions
        # ignore the key in the schema of a dictionary.
        schema: dict[str, Any] = {**handler(source)}
        return {**schema, "fail_fast": True}


FIRST_FAULT: Final = _FirstFault()
