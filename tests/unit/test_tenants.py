"""The registry of tenants as a fold: what a compacted topic may lose or repeat changes nothing."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runfold.settings import Settings
from runfold.tenants.registry import Quotas, Tenant, Tenants, settings_of
from runfold_schemas.codec import Record

OWN = Tenant(name="own", database="own", partitions=None)
NAMES = ("own", "acme", "initech", "umbrella")


def record(offset: int, key: str, value: bytes | None) -> Record:
    return Record(offset=offset, key=key.encode(), value=value, log_time=0, headers=())


def put(tenant: Tenant) -> tuple[str, bytes]:
    return f"tenant:{tenant.name}", tenant.model_dump_json(exclude={"dropping"}).encode()


def tenant(name: str, **fields: object) -> Tenant:
    usual = {"database": name, "partitions": 1, "created_at": datetime(2026, 1, 1, tzinfo=UTC)}
    return Tenant.model_validate({"name": name} | usual | fields)


def folded(entries: list[tuple[str, bytes | None]]) -> Tenants:
    tenants = Tenants(OWN)
    for offset, (key, value) in enumerate(entries):
        tenants.take(record(offset, key, value))
    return tenants


def seen(tenants: Tenants) -> dict[str, Tenant | None]:
    assert [each.name for each in tenants.all()] == sorted(each.name for each in tenants.all())
    return {name: tenants.get(name) for name in NAMES} | {each.name: each for each in tenants.all()}


quotas = st.builds(Quotas, requests_per_minute=st.none() | st.integers(0, 9))
changes = st.one_of(
    st.builds(lambda name, limits: put(tenant(name, quotas=limits)), st.sampled_from(NAMES), quotas),
    st.builds(lambda name: (f"tenant:{name}", None), st.sampled_from(NAMES)),
    st.builds(lambda name: (f"dropping:{name}", b"{}"), st.sampled_from(NAMES)),
    st.builds(lambda name: (f"dropping:{name}", None), st.sampled_from(NAMES)),
)
histories = st.lists(changes, max_size=20)


@given(histories, st.data())
def test_compaction_changes_nothing(entries, data):
    last = {key: index for index, (key, _) in enumerate(entries)}
    kept = [
        entry
        for index, entry in enumerate(entries)
        if index == last[entry[0]] or data.draw(st.booleans(), label=f"keeps {index}")
    ]

    assert seen(folded(kept)) == seen(folded(entries))


@given(histories, st.data())
def test_only_the_order_under_a_key_counts(entries, data):
    keys = data.draw(st.permutations([key for key, _ in entries]))
    values = {key: iter([value for other, value in entries if other == key]) for key in keys}

    assert seen(folded([(key, next(values[key])) for key in keys])) == seen(folded(entries))


@given(histories)
def test_a_history_that_is_read_twice_gives_the_same(entries):
    assert seen(folded(entries + entries)) == seen(folded(entries))


@given(histories)
def test_a_tenant_is_active_unless_it_is_unknown_or_being_dropped(entries):
    tenants = folded(entries)

    for name in NAMES:
        tenant = tenants.get(name)
        assert (tenants.active(name) is None) == (tenant is None or tenant.dropping)


def test_the_installation_itself_needs_no_record_and_is_never_dropped():
    tenants = folded([("dropping:own", b"{}")])

    assert tenants.active("own") == OWN
    assert tenants.all() == []


def test_a_record_about_the_installation_itself_changes_its_quotas_only():
    changed = tenant("own", database="stolen", partitions=3, quotas=Quotas(open_runs=5))

    assert folded([put(changed)]).get("own") == OWN.model_copy(update={"quotas": Quotas(open_runs=5)})


def test_a_change_of_quotas_does_not_undo_a_drop():
    entries = [put(tenant("acme")), ("dropping:acme", b"{}"), put(tenant("acme", quotas=Quotas(open_runs=1)))]

    assert folded(entries).active("acme") is None


def test_a_record_under_the_name_of_another_tenant_changes_nothing():
    _, value = put(tenant("acme"))

    assert seen(folded([("tenant:initech", value)])) == seen(folded([]))


@pytest.mark.parametrize("value", [b"", b"[]", b'{"name": "a.b", "database": "x", "partitions": 1}', b"\xff"])
def test_a_record_that_is_no_tenant_is_refused(value):
    with pytest.raises(ValueError, match=r"."):
        folded([("tenant:a.b", value)])


def test_quotas_of_a_later_version_are_left_out():
    value = tenant("acme").model_dump_json().replace('"open_runs":null', '"open_runs":4,"planets":9').encode()

    assert folded([("tenant:acme", value)]).get("acme") == tenant("acme", quotas=Quotas(open_runs=4))


def test_a_quota_is_never_negative():
    with pytest.raises(ValidationError):
        Quotas(open_runs=-1)


def test_the_settings_of_a_tenant_are_those_of_the_installation_with_its_topics_and_database():
    settings = Settings(prefix="own", port=9999)

    of_tenant = settings_of(settings, tenant("acme", database="acme-data"))

    assert (of_tenant.prefix, of_tenant.database, of_tenant.port) == ("acme", "acme-data", 9999)
    assert of_tenant.log().prefix == "acme"
    assert settings_of(settings, OWN) is settings
