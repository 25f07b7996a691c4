"""The HTTP protocol of Vertex AI Agent Engine, for Google's clients `vertexai` and `agentplatform`
and for ADK's services.

    options = {"base_url": "http://127.0.0.1:8080"}
    client = vertexai.Client(project="p", location="l", api_key="any", http_options=options)
    client.agent_engines.sessions.create(name="reasoningEngines/1", user_id="ann")

`names`, `messages`, `errors`, `requests`, `operations`, `paging` and `filters` implement the
protocol. `engines`, `sessions`, `memories`, `revisions`, `retrieval` and `generation` have the
routes, each on top of Runfold's verbs. `app` puts them together.
"""

from runfold.vertex.app import RouteGroup, build_vertex_app, mount

__all__ = ["RouteGroup", "build_vertex_app", "mount"]
