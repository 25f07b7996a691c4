"""Model providers: a ledger as their request (`encode`), their response as events (`recorder`),
what they would refuse (`validate`), and the events that mend it (`repair`).

One module a provider. They are pure and import no SDK: requests are dicts, and responses may be an
SDK's objects or JSON.
"""

from runfold_projections.providers.encoding import Encoded, Lossy
from runfold_projections.providers.recording import Blocks, Recorder
from runfold_projections.providers.registry import encode, provider_of, recorder, validate

__all__ = ["Blocks", "Encoded", "Lossy", "Recorder", "encode", "provider_of", "recorder", "validate"]
