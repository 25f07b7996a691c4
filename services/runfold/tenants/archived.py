"""Whether a tenant has runs in the archive, by its catalog."""

from runfold.log.admin import LogAdmin
from runfold.log.catalog_view import CatalogView
from runfold.settings import Settings


async def has_archived(own: Settings) -> bool:
    """Whether the log of any run of the tenant with these settings was sealed once. Raises
    `UnavailableError`.
    """
    log = own.log()
    async with LogAdmin.connect(log) as admin:
        if log.topics.catalog not in await admin.list_topics():
            return False  # nobody has used the tenant, or a drop that was interrupted has deleted it
    async with CatalogView.connect(log) as catalog:
        return await catalog.has_sealed()
