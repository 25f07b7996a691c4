"""Measures one API that serves many tenants: what it takes to open each of them, and what they cost
while they are open.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

from processor import processor_seconds
from query import Figures, Process, median_ms, serving

from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.log.clients import LogClients
from runfold.log.compacted import create
from runfold.settings import Settings
from runfold.tenants.registry import Tenant, check_tenant, put_tenant, settings_of, tenant_topic

TENANTS = 200
ALONE = 20
IDLE_SECONDS = 20


async def tenants_api(settings: Settings) -> Figures:
    """The first requests of 200 tenants to one API, 20 of them one after the other."""
    settings = settings.model_copy(update={"prefix": f"{settings.prefix[:24]}-api"})
    asking = settings.model_copy(update={"database": settings.prefix, "authentication": "required"})
    asking.__pydantic_fields_set__.add("authentication")
    keys = await _new_tenants(asking)
    async with serving(asking, "api") as api:
        memory, processor = _memory_mb(api), processor_seconds(api.pid)
        alone = [await _open_run(api, key) for key in keys[:ALONE]]
        began = time.perf_counter()
        await asyncio.gather(*(_open_run(api, key) for key in keys[ALONE:]))
        seconds = time.perf_counter() - began
        each = (processor_seconds(api.pid) - processor) / TENANTS
        grown = _memory_mb(api) - memory
        again = [await _open_run(api, key) for key in keys[:ALONE]]
        await asyncio.sleep(IDLE_SECONDS)  # they rest from here on
        processor = processor_seconds(api.pid)
        await asyncio.sleep(IDLE_SECONDS)
        idle = (processor_seconds(api.pid) - processor) / IDLE_SECONDS
    return [
        ("first request of a parked tenant, opens a run, p50", "-", median_ms(alone)),
        ("the same request of an open tenant, p50", "-", median_ms(again)),
        (f"first requests of {TENANTS - ALONE} tenants at once", "-", f"{seconds:.1f} s"),
        ("API's CPU for opening a tenant and a run", "-", f"{each * 1000:.0f} ms"),
        (f"API's memory for {TENANTS} open tenants", "-", f"{grown:.0f} MB more than {memory:.0f} MB"),
        (f"API's CPU with {TENANTS} open tenants that rest", "< 10 %", f"{idle:.1%} of a core"),
    ]


async def _new_tenants(settings: Settings) -> list[str]:
    """Registers the tenants with their topics. Returns a key of each."""
    log, topic = settings.log(), tenant_topic(settings)
    keys: list[str] = []
    async with LogClients.connect(log) as clients:
        await create(log, topic)
        administration = KeyAdministration(
            log, lambda: clients.publisher, check_tenant=partial(check_tenant, settings)
        )
        for number in range(TENANTS):
            name = f"{settings.prefix}-{number}"
            tenant = Tenant(name=name, database=name, partitions=1)
            await clients.admin(settings_of(settings, tenant).log()).create_shared_topics()
            await put_tenant(clients.publisher, topic, tenant)
            grant = KeyGrant(name="benchmark", tenant=name)
            keys.append((await administration.add(grant, by="benchmark")).text)
    return keys


async def _open_run(api: Process, key: str) -> float:
    """The seconds that a tenant's request to open a run takes."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    body = b'{"agent_id": "benchmark"}'
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status = await reader.readline()
    writer.close()
    if b" 201 " not in status:
        raise RuntimeError(f"a tenant could not open a run: {status!r}")
    return time.perf_counter() - began


def _memory_mb(api: Process) -> float:
    status = Path(f"/proc/{api.pid}/status").read_text(encoding="ascii")
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(kilobytes) / 1024
