"""Google ADK on Runfold: `runfold[adk]`.

from runfold.adk import RunfoldMemoryService, RunfoldSessionService

url = "http://127.0.0.1:8080"
runner = Runner(
    app_name="shop",
    agent=agent,
    session_service=RunfoldSessionService(url),
    memory_service=RunfoldMemoryService(url),
)
"""

from runfold.adk.memory_service import RunfoldMemoryService
from runfold.adk.session_service import RunfoldSessionService

__all__ = ["RunfoldMemoryService", "RunfoldSessionService"]
