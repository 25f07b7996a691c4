"""Model providers: encodes a ledger as a request (`encode`), records a response as events
(`recorder`), and finds the parts that a provider would refuse (`validate`).

Each provider has a module. The modules are pure and import no SDK: requests are dictionaries, and
responses may be objects of an SDK or JSON.
"""

from runfold_projections.providers.encoding import Encoded, EncodeOptions, Lossy
from runfold_projections.providers.recording import Blocks, Recorder
from runfold_projections.providers.registry import (
    check_names,
    check_options,
    check_provider,
    encode,
    mistaken_provider,
    provider_of,
    recorder,
)
from runfold_projections.providers.validating import ValidateOptions, validate

__all__ = [
    "Blocks",
    "EncodeOptions",
    "Encoded",
    "Lossy",
    "Recorder",
    "ValidateOptions",
    "check_names",
    "check_options",
    "check_provider",
    "encode",
    "mistaken_provider",
    "provider_of",
    "recorder",
    "validate",
]
