"""Events of ADK in which every field is set, so that what a store forgets is seen."""

from typing import Any

from fastapi.openapi.models import OAuth2, OAuthFlowAuthorizationCode, OAuthFlows
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.events.ui_widget import UiWidget
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

BYTES = bytes(range(256))
# A dictionary as tools and agents fill them: no key of it means anything to us.
FREE: dict[str, Any] = {
    "camelCase": 1,
    "snake_case": 2,
    "stateDelta": {"state_delta": [None]},
    "a.b": {"$set": {"$": 1}},
    "__proto__": {"x": 1},
    "": None,
    "nul\0": "nul\0",
    "big": 2**80,
    "float": 1.0,
    "true": True,
    "none": None,
    "list": [None, [], {}, "😀"],
    "type": "state_changed",
    "data": "AP+A",
}


def complete_event() -> Event:
    """An event with every field of its class set; only fragments have `partial`, and they are not
    stored.
    """
    return Event(
        id="event",
        timestamp=1_700_000_000.123457,
        invocation_id="invocation",
        author="agent",
        branch="root.child",
        isolation_scope="call",
        node_info=NodeInfo(path="flow@1/node@2", output_for=["flow@1"], message_as_output=True),
        output=FREE,
        long_running_tool_ids={"b", "a", "c"},
        actions=complete_actions(),
        content=types.Content(role="model", parts=parts()),
        partial=False,
        turn_complete=True,
        turn_complete_reason=types.TurnCompleteReason.NEED_MORE_INPUT,
        interaction_status=types.InteractionStatus.IDLE,
        interaction_id="interaction",
        environment_id="environment",
        interrupted=False,
        finish_reason=types.FinishReason.MAX_TOKENS,
        error_code="429",
        error_message="later",
        custom_metadata=FREE,
        model_version="model-1",
        avg_logprobs=-0.1,
        logprobs_result=logprobs(),
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1,
            candidates_token_count=2,
            total_token_count=3,
            thoughts_token_count=0,
            traffic_type=types.TrafficType.ON_DEMAND,
            prompt_tokens_details=[
                types.ModalityTokenCount(modality=types.MediaModality.IMAGE, token_count=1)
            ],
        ),
        cache_metadata=CacheMetadata(
            cache_name="cache",
            expire_time=1.5,
            fingerprint="f",
            invocations_used=1,
            contents_count=2,
            created_at=0.5,
        ),
        citation_metadata=types.CitationMetadata(
            citations=[
                types.Citation(
                    start_index=0,
                    end_index=4,
                    uri="https://example.com",
                    publication_date=types.GoogleTypeDate(year=2026, month=1, day=2),
                )
            ]
        ),
        grounding_metadata=grounding(),
        input_transcription=transcription(),
        output_transcription=transcription(),
        voice_activity=types.VoiceActivity(
            voice_activity_type=types.VoiceActivityType.ACTIVITY_START, audio_offset="1.5s"
        ),
        go_away=types.LiveServerGoAway(time_left="10s"),
        live_session_id="live",
        live_session_resumption_update=types.LiveServerSessionResumptionUpdate(
            new_handle="handle", resumable=True, last_consumed_client_message_index=2**62
        ),
    )


def complete_actions() -> EventActions:
    return EventActions(
        skip_summarization=True,
        state_delta={"k": FREE, "app:k": FREE, "user:k": FREE},
        artifact_delta={"a/b.png": 0, "user:c.d": 3},
        transfer_to_agent="other",
        transfer_reason="knows more",
        escalate=False,
        requested_auth_configs={"call": auth_config()},
        requested_tool_confirmations={"call": ToolConfirmation(hint="sure?", confirmed=False, payload=FREE)},
        compaction=EventCompaction(
            start_timestamp=1.25,
            end_timestamp=2.5,
            compacted_content=types.Content(role="model", parts=[types.Part(text="in short")]),
        ),
        end_of_agent=True,
        agent_state=FREE,
        rewind_before_invocation_id="earlier",
        route=["left", 1, True],
        render_ui_widgets=[UiWidget(id="w", provider="p", payload=FREE)],
        set_model_response=FREE,
    )


def auth_config() -> AuthConfig:
    code = OAuthFlowAuthorizationCode(
        authorizationUrl="https://example.com/a",
        tokenUrl="https://example.com/t",
        scopes={"read.all": "all of it"},
    )
    return AuthConfig(
        auth_scheme=OAuth2(flows=OAuthFlows(authorizationCode=code)),
        raw_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(client_id="id", client_secret="secret")
        ),
        exchanged_auth_credential=AuthCredential(
            auth_type=AuthCredentialTypes.OAUTH2, oauth2=OAuth2Auth(access_token="token", expires_at=1)
        ),
        credential_key="key",
    )


def parts() -> list[types.Part]:
    """Parts of every kind; together they have every field set."""
    return [
        types.Part(text="", thought=True, thought_signature=BYTES),
        types.Part(text="hello\0😀", part_metadata=FREE),
        types.Part(
            inline_data=types.Blob(data=BYTES, mime_type="image/png", display_name="a"),
            media_resolution=types.PartMediaResolution(
                level=types.PartMediaResolutionLevel.MEDIA_RESOLUTION_LOW, num_tokens=1
            ),
            media_processing=types.MediaProcessing.STATIC,
        ),
        types.Part(
            inline_data=types.Blob(data=b"", mime_type="audio/pcm"), audio_transcription=transcription()
        ),
        types.Part(
            file_data=types.FileData(file_uri="gs://a/b", mime_type="video/mp4"),
            video_metadata=types.VideoMetadata(start_offset="1s", end_offset="2s", fps=0.5),
            speech_metadata=types.SpeechMetadata(speaker="a", style="b"),
        ),
        types.Part(
            function_call=types.FunctionCall(
                id="call",
                name="look",
                args=FREE,
                will_continue=False,
                partial_args=[types.PartialArg(json_path="$.a", number_value=1.0, will_continue=True)],
            ),
            thought_signature=b"\xff\xfe\x00",
        ),
        types.Part(
            function_response=types.FunctionResponse(
                id="call",
                name="look",
                response=FREE,
                scheduling=types.FunctionResponseScheduling.SILENT,
                parts=[
                    types.FunctionResponsePart(
                        inline_data=types.FunctionResponseBlob(data=BYTES, mime_type="image/png")
                    )
                ],
            )
        ),
        types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON, id="e")),
        types.Part(
            code_execution_result=types.CodeExecutionResult(
                outcome=types.Outcome.OUTCOME_OK, output="1", id="e"
            )
        ),
        types.Part(tool_call=types.ToolCall(id="t", tool_type=types.ToolType.URL_CONTEXT, args=FREE)),
        types.Part(
            tool_response=types.ToolResponse(id="t", tool_type=types.ToolType.URL_CONTEXT, response=FREE)
        ),
    ]


def grounding() -> types.GroundingMetadata:
    return types.GroundingMetadata(
        web_search_queries=["a", ""],
        search_entry_point=types.SearchEntryPoint(rendered_content="<b>", sdk_blob=BYTES),
        grounding_chunks=[
            types.GroundingChunk(web=types.GroundingChunkWeb(uri="https://example.com", title="t"))
        ],
        grounding_supports=[
            types.GroundingSupport(
                confidence_scores=[0.1, 1.0],
                grounding_chunk_indices=[0],
                segment=types.Segment(start_index=0, end_index=4, text="😀"),
            )
        ],
        retrieval_metadata=types.RetrievalMetadata(google_search_dynamic_retrieval_score=0.5),
    )


def logprobs() -> types.LogprobsResult:
    candidate = types.LogprobsResultCandidate(token="a", token_id=1, log_probability=-0.25)
    return types.LogprobsResult(
        chosen_candidates=[candidate],
        top_candidates=[types.LogprobsResultTopCandidates(candidates=[candidate])],
        log_probability_sum=-0.25,
    )


def transcription() -> types.Transcription:
    return types.Transcription(text="hello", finished=True, language_code="en", speaker_label="a")
