"""Google ADK on Runfold: `runfold[adk]`.

from runfold.adk import RunfoldSessionService

runner = Runner(app_name="shop", agent=agent, session_service=RunfoldSessionService("http://127.0.0.1:8080"))
"""

from runfold.adk.session_service import RunfoldSessionService

__all__ = ["RunfoldSessionService"]
