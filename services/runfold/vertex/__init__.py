"""Vertex AI Agent Engine over HTTP, as Google's own clients speak it: `vertexai`, `agentplatform`
and ADK's services.

client = vertexai.Client(project="p", location="l", api_key="any", http_options={"base_url":
"http://127.0.0.1:8080"}) client.agent_engines.sessions.create(name="reasoningEngines/1",
user_id="ann")

names  messages  errors  requests  operations  paging  filters    how it speaks app
its parts, put together sessions  ...                                                     the parts,
each on top of verbs of ours
"""

from runfold.vertex.app import RouteGroup, build_vertex_app, mount

__all__ = ["RouteGroup", "build_vertex_app", "mount"]
