"""What the API has open of a further tenant with encryption."""

from pathlib import Path
from uuid import uuid4

from tests.querying import projected
from tests.sealed_services import sealed_settings

from runfold.api.parts import ApiParts
from runfold.encryption.subjects import user_subject
from runfold.log.clients import LogClients


async def test_one_follower_of_the_keys_serves_all_of_a_tenant(kafka: str, mongo: str, tmp_path: Path):
    own, name = sealed_settings(kafka, mongo, tmp_path), f"t{uuid4().hex[:8]}"
    tenant = own.model_copy(update={"prefix": name, "database": name})
    async with (
        LogClients.connect(own.log()) as clients,
        ApiParts(own) as beside,
        projected(tenant.model_copy(update={"encryption_key": None})),
        ApiParts(tenant, beside=beside, clients=clients) as parts,
    ):
        sealing = parts.connection.runfold().connection.sealing
        assert sealing is not None
        assert parts.reading.stored_runs.sealing is sealing
        session = await parts.sessions().create(app="desk", user="ann", state={"card": "4711"})
        assert (await parts.sessions().view(session.session_id)).state == {"card": "4711"}

        assert await sealing.keys.destroy(user_subject("ann")) == 1

        assert (await parts.sessions().view(session.session_id)).state == {"card": "[erased]"}
