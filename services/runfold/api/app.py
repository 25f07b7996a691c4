"""Ingest and query in one process, behind one base URL, for all tenants of an installation."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI

from runfold.api.dead_letters import build_dead_letter_router
from runfold.api.deletion import build_deletion_router
from runfold.api.erasure import build_erasure_router
from runfold.api.generation import build_generation_router
from runfold.api.keys import build_key_router
from runfold.api.memories import build_memory_router
from runfold.api.operations import build_operations_router
from runfold.api.parts import ApiParts
from runfold.api.quarantine import build_quarantine_router
from runfold.api.sessions import build_session_router
from runfold.api.shared_state import build_state_router
from runfold.client.runfold import Runfold
from runfold.console.login import build_login_router
from runfold.console.pages import add_console
from runfold.console.provider_login import build_provider_login_router
from runfold.generation.model import MemoryModel
from runfold.generation.permitted import PermittedGeneration
from runfold.http.app import new_app, serve
from runfold.http.authorisation import check_owners_by
from runfold.identity.administration import KeyAdministration
from runfold.identity.authenticator import (
    authenticator_of,
    plans_in,
    provider_login_of,
    quotas_in,
    ready_when_known,
)
from runfold.ingest.app import build_router
from runfold.log.clients import LogClients
from runfold.permissions.memories import permitted_memories
from runfold.permissions.permissions import OwnerChecks, permissions_by
from runfold.permissions.sessions import permitted_sessions
from runfold.query.app import router
from runfold.settings import Settings
from runfold.tenants.open_tenants import OpenTenants
from runfold.tenants.plans import Plans
from runfold.tenants.registry import check_tenant
from runfold.tenants.rounds import Rounds
from runfold.vertex import build_vertex_app, mount
from runfold.vertex.engines import BankEngines, engine_routes
from runfold.vertex.generation import generation_routes
from runfold.vertex.memories import memory_routes
from runfold.vertex.retrieval import retrieval_routes
from runfold.vertex.revisions import revision_routes
from runfold.vertex.sessions import session_routes
from runfold_schemas.catalog import Life


async def run(settings: Settings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C."""
    await serve(build_app(settings), settings.http())


def build_app(settings: Settings, *, model: MemoryModel | None = None, plans: Plans | None = None) -> FastAPI:
    """The application, which is connected for the length of its lifespan. `model` replaces the
    language model that the settings name, and `plans` the registry of tenants.
    """
    own, authenticator = ApiParts(settings, model=model), authenticator_of(settings)
    quotas, login = quotas_in(settings, authenticator), provider_login_of(settings, authenticator)

    def open_parts(of_tenant: Settings, clients: LogClients) -> ApiParts:
        if quotas is not None:
            quotas.count_tokens(of_tenant.prefix)
        return ApiParts(of_tenant, beside=own, clients=clients)

    plans = plans or plans_in(settings, authenticator)
    tenants = OpenTenants(settings, own, open_parts=open_parts, plans=plans)

    rounds = _rounds(settings, tenants, plans, own)
    app = new_app(
        "Runfold",
        ready=ready_when_known(authenticator, own.check_ready),
        authenticate=authenticator,
        tenant=settings.prefix,
        tenants=tenants,
        quotas=quotas,
        add_home=partial(add_console, has_provider=login is not None),
        lifespan=_lifespan(authenticator, quotas, tenants, rounds),
        description="Publish runs and read them; sessions with their state; memories.",
    )
    keys = KeyAdministration(
        settings.log("runfold/keys"),
        lambda: own.connection.runfold().connection.publisher,
        None if authenticator is None else authenticator.keys,
        check_tenant=partial(check_tenant, settings),
    )
    app.include_router(build_key_router(keys))
    app.include_router(build_login_router())
    app.include_router(build_provider_login_router(login))
    _add_routes(app, tenants.parts)
    return app


def _lifespan(
    *parts: AbstractAsyncContextManager[object] | None,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of an application, in which those of these parts that exist are open."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for part in parts:
                if part is not None:
                    await stack.enter_async_context(part)
            yield

    return lifespan


def _rounds(
    settings: Settings, tenants: OpenTenants[ApiParts], plans: Plans | None, own: ApiParts
) -> Rounds | None:
    if plans is None:
        return None
    return Rounds(tenants, settings, plans.all, is_needed=lambda: own.generation.model is not None)


def _add_routes(app: FastAPI, parts: Callable[[], ApiParts]) -> None:
    """The routes that use the data of tenants. `parts` returns what is open of the tenant of the
    request that the current task answers.
    """
    check_owners_by(app, OwnerChecks(lambda: parts().owners))
    permissions = permissions_by(lambda: parts().owners)

    async def runs_of(session_id: str) -> Sequence[Life]:
        return await parts().reading.stored_runs.of_session(session_id)

    sessions = permitted_sessions(lambda: parts().sessions(), permissions, runs_of)
    memories = permitted_memories(lambda: parts().memories(), permissions)

    def generation() -> PermittedGeneration:
        return PermittedGeneration(parts().generation, permissions())

    def runfold() -> Runfold:
        return parts().connection.runfold()

    for routes in (
        build_router(lambda: parts().connection, lambda: parts().owners),
        build_session_router(sessions),
        build_state_router(sessions),
        build_deletion_router(runfold, lambda: parts().reading.stored_runs),
        build_erasure_router(lambda: parts().erasures),
        build_memory_router(memories),
        build_generation_router(generation),
        router(lambda: parts().reading),
        build_quarantine_router(lambda: parts().quarantine, runfold),
        build_dead_letter_router(lambda: parts().dead_letters, runfold, permissions),
        build_operations_router(lambda: parts().operations),
    ):
        app.include_router(routes)
    mount(
        app,
        build_vertex_app(
            engine_routes(memories, sessions),
            session_routes(sessions, BankEngines(memories)),
            memory_routes(memories),
            revision_routes(memories),
            retrieval_routes(memories),
            generation_routes(generation),
        ),
    )
