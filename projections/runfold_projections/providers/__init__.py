"""Model providers: encodes a ledger as a request (`encode`), records a response as events
(`recorder`), and finds the parts that a provider would refuse (`validate`).

Each provider has a module. The modules are pure and import no SDK: requests are dictionaries, and
responses may be objects of an SDK or JSON.
"""

from runfold_projections.providers.encoding import Encoded, Lossy
from runfold_projections.providers.recording import Blocks, Recorder
from runfold_projections.providers.registry import encode, provider_of, recorder, validate

__all__ = ["Blocks", "Encoded", "Lossy", "Recorder", "encode", "provider_of", "recorder", "validate"]
