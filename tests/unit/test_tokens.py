"""Tokens of an identity provider, which answers over HTTP."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from http.client import HTTPMessage
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.request import Request

import pytest
from tests.identity_provider import (
    AUDIENCE,
    Provider,
    SigningKey,
    ec_key,
    ed_key,
    identity_provider,
    rsa_key,
)

from runfold.http.principal import Scope
from runfold.identity import fetched
from runfold.identity.provider_keys import ProviderKeys, SameScheme
from runfold.identity.tokens import Tokens
from runfold.settings import Settings
from runfold_schemas.errors import UnauthenticatedError, UnavailableError

MINUTES_5 = 300


@pytest.fixture
def provider() -> Iterator[Provider]:
    with identity_provider() as provider:
        yield provider


def settings_of(provider: Provider, **settings: Any) -> Settings:
    return Settings(
        authentication="required", oidc_issuer=provider.issuer, oidc_audience=AUDIENCE, **settings
    )


def tokens_of(provider: Provider, *, pause_seconds: float = 0.0, **settings: Any) -> Tokens:
    return Tokens(
        settings_of(provider, **settings), ProviderKeys(provider.issuer, pause_seconds=pause_seconds)
    )


async def test_a_token_names_its_subject_and_its_scopes(provider):
    token = await tokens_of(provider).read(provider.token(scope="openid runfold:read runfold:publish"))

    assert token.principal.subject == "token:ann"
    assert token.principal.tenant == "runfold"
    assert token.principal.scopes == {Scope.read, Scope.publish}
    assert token.principal.agents is None
    assert token.principal.users is None


@pytest.mark.parametrize("alg", ["RS256", "RS512", "PS256", "ES256", "EdDSA"])
async def test_every_asymmetric_algorithm_counts(provider, alg):
    key = {"E": ec_key, "R": rsa_key, "P": rsa_key}[alg[0]]("it") if alg != "EdDSA" else ed_key("it")
    provider.keys.append(key)

    assert await tokens_of(provider).read(provider.token(key, alg=alg))


async def test_a_published_algorithm_binds_its_key(provider):
    provider.keys = [rsa_key("bound", alg="RS512")]
    tokens = tokens_of(provider)

    assert await tokens.read(provider.token(alg="RS512"))
    with pytest.raises(UnauthenticatedError, match="algorithm"):
        await tokens.read(provider.token(alg="RS256"))


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": time.time() - 3600}, "expired"),
        ({"exp": time.time() - 61}, "expired"),
        ({"aud": "another"}, "audience"),
        ({"aud": ["another", "third"]}, "audience"),
        ({"aud": []}, "'aud'"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"without": ("exp",)}, "'exp'"),
        ({"without": ("aud",)}, "'aud'"),
        ({"without": ("iss",)}, "'iss'"),
        ({"without": ("sub",)}, "'sub'"),
        ({"exp": "tomorrow"}, "malformed"),
        ({"exp": True}, "malformed"),
        ({"nbf": time.time() + 3600}, "clock"),
    ],
)
async def test_a_token_with_a_wrong_claim_is_refused(provider, claims, reason):
    with pytest.raises(UnauthenticatedError, match=reason):
        await tokens_of(provider).read(provider.token(**claims))


async def test_clocks_may_be_five_minutes_off(provider):
    tokens, now = tokens_of(provider), time.time()
    from_the_future = provider.token(iat=int(now) + MINUTES_5, nbf=int(now) + MINUTES_5, exp=int(now) + 3900)
    from_the_past = provider.token(iat=int(now) - MINUTES_5, nbf=int(now) - MINUTES_5, exp=int(now) + 3300)
    just_over = provider.token(exp=int(now) - 30)

    assert await tokens.read(from_the_future)
    assert await tokens.read(from_the_past)
    assert await tokens.read(just_over)
    with pytest.raises(UnauthenticatedError, match="clock"):
        await tokens.read(provider.token(nbf=int(now) + MINUTES_5 + 60))
    with pytest.raises(UnauthenticatedError, match="clock"):
        await tokens_of(provider, oidc_clock_skew_seconds=0).read(provider.token(nbf=int(now) + 30))


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def claims_of(provider: Provider) -> dict[str, Any]:
    return {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 3600}


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None])
async def test_a_token_without_a_signature_is_refused(provider, alg):
    for signature in ("", "AAAA"):
        text = f"{part({'alg': alg, 'kid': 'first'})}.{part(claims_of(provider))}.{signature}"
        with pytest.raises(UnauthenticatedError):
            await tokens_of(provider).read(text)


async def test_the_public_key_is_no_secret(provider):
    """An attacker signs with the provider's public key, as if it were a shared secret."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    public = (
        provider.keys[0]
        .private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{part(claims_of(provider))}"
    for secret in (public, json.dumps(provider.keys[0].published()).encode()):
        mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        text = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        with pytest.raises(UnauthenticatedError, match="algorithm"):
            await tokens_of(provider).read(text)


async def test_a_symmetric_key_of_the_provider_counts_for_nothing(provider):
    secret = base64.urlsafe_b64encode(b"s" * 32).rstrip(b"=").decode()
    provider.more = [{"kty": "oct", "kid": "shared", "k": secret, "alg": "HS256"}]
    signed = f"{part({'alg': 'HS256', 'kid': 'shared'})}.{part(claims_of(provider))}"
    mac = hmac.new(b"s" * 32, signed.encode(), hashlib.sha256).digest()

    with pytest.raises(UnauthenticatedError, match="algorithm"):
        await tokens_of(provider).read(f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")


async def test_a_key_in_the_token_counts_for_nothing(provider):
    mine = rsa_key("mine")
    for headers in ({"jwk": mine.published()}, {"jku": "https://evil.example/keys"}, {}):
        with pytest.raises(UnauthenticatedError, match="no such key"):
            await tokens_of(provider).read(provider.token(mine, headers=headers))
    with pytest.raises(UnauthenticatedError, match="signature"):
        await tokens_of(provider).read(provider.token(SigningKey(mine.private, "first")))


@pytest.mark.parametrize(
    "text", ["", "a", "a.b.c", "....", "é.é.é", "a" * 20_000, "e30.e30.e30", f"{'e30.' * 5}e30"]
)
async def test_a_text_that_is_no_token_is_refused(provider, text):
    with pytest.raises(UnauthenticatedError):
        await tokens_of(provider).read(text)


async def test_odd_headers_and_claims_are_refused(provider):
    for header in ([], 1, "x", {"alg": ["RS256"], "kid": "first"}, {"alg": "RS256", "kid": 1}):
        with pytest.raises(UnauthenticatedError):
            await tokens_of(provider).read(f"{part(header)}.{part(claims_of(provider))}.AAAA")
    with pytest.raises(UnauthenticatedError):
        await tokens_of(provider).read(provider.token(headers={"crit": ["exp"]}))


async def test_a_short_key_counts_for_nothing(provider):
    provider.keys = [rsa_key("short", bits=1024)]
    with pytest.warns(), pytest.raises(UnauthenticatedError):
        await tokens_of(provider).read(provider.token())


async def test_a_new_key_is_fetched_and_a_made_up_one_asks_seldom(provider, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(fetched, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tokens = tokens_of(provider, pause_seconds=0.5)
    assert await tokens.read(provider.token())
    assert provider.fetches == 1

    made_up = rsa_key("made-up")
    for _ in range(20):
        with pytest.raises(UnauthenticatedError):
            await tokens.read(provider.token(made_up))
    assert provider.fetches == 1  # within the pause

    provider.keys.append(rsa_key("second"))
    now[0] += 0.5
    assert await tokens.read(provider.token(provider.keys[1]))
    assert provider.fetches == 2


async def test_concurrent_tokens_share_a_fetch(provider):
    tokens, text = tokens_of(provider, pause_seconds=10), provider.token()

    await asyncio.gather(*(tokens.read(text) for _ in range(50)))

    assert provider.fetches == 1


async def test_while_the_provider_is_away_known_keys_count(provider, monkeypatch):
    tokens = tokens_of(provider)
    assert await tokens.read(provider.token())

    provider.is_away = True
    monkeypatch.setattr(fetched, "FRESH_SECONDS", 0.0)
    assert await tokens.read(provider.token())
    with pytest.raises(UnauthenticatedError):
        await tokens.read(provider.token(rsa_key("unknown")))

    monkeypatch.setattr(fetched, "KEPT_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="identity provider"):
        await tokens.read(provider.token())


async def test_a_provider_that_was_never_there_is_unavailable_and_then_found(provider):
    provider.is_away = True
    tokens = tokens_of(provider)
    with pytest.raises(UnavailableError, match="identity provider"):
        await tokens.read(provider.token())

    provider.is_away = False
    assert await tokens.read(provider.token())


async def test_a_withdrawn_key_stops_counting(provider, monkeypatch):
    tokens, old = tokens_of(provider), provider.token()
    assert await tokens.read(old)

    provider.keys = [rsa_key("second")]
    monkeypatch.setattr(fetched, "FRESH_SECONDS", 0.0)
    async with asyncio.timeout(60):
        while True:
            try:
                await tokens.read(old)
            except UnauthenticatedError:
                break
            await asyncio.sleep(0.02)


async def test_a_description_of_another_issuer_is_refused(provider):
    provider.named_issuer = "https://evil.example"
    with pytest.raises(UnavailableError, match="RUNFOLD_OIDC_ISSUER"):
        await tokens_of(provider).read(provider.token())


@pytest.mark.parametrize(
    "target", ["http://idp.example/keys", "HTTP://idp.example/keys", "ftp://idp.example"]
)
def test_a_redirect_to_another_scheme_is_refused(target):
    request = Request("https://idp.example/keys")

    with pytest.raises(ValueError, match="another scheme"):
        SameScheme().redirect_request(request, BytesIO(), 302, "", HTTPMessage(), target)


def test_keys_are_fetched_with_that_rule(provider, monkeypatch):
    refused = []
    monkeypatch.setattr(SameScheme, "redirect_request", lambda _, *args: refused.append(args[-1]))
    provider.redirects_to = "http://127.0.0.1:1/keys"

    with pytest.raises(UnavailableError):
        asyncio.run(ProviderKeys(provider.issuer).find(None))

    assert refused == ["http://127.0.0.1:1/keys"]


async def test_settings_map_claims_to_scopes_and_limits(provider):
    tokens = tokens_of(
        provider,
        oidc_scopes_claim="realm_access.roles",
        oidc_scopes={"agents": ["publish", "read"], "admins": ["administer"]},
        oidc_users_claim="sub",
        oidc_agents_claim="https://runfold.example/agents",
    )
    roles = {"realm_access": {"roles": ["agents", "unknown", 7]}}
    limited = await tokens.read(provider.token(**roles, **{"https://runfold.example/agents": ["a", "b"]}))
    unlimited = await tokens.read(provider.token(realm_access={"roles": ["admins"]}))
    without = await tokens.read(provider.token(**roles))

    assert limited.principal.scopes == {Scope.publish, Scope.read}
    assert limited.principal.users == ("ann",)
    assert limited.principal.agents == ("a", "b")
    assert unlimited.principal.scopes == {Scope.administer}
    assert unlimited.principal.users is None
    assert without.principal.agents == ()


async def test_a_token_without_scopes_allows_nothing(provider):
    for claims in (
        {"scope": "openid"},
        {"without": ("scope",)},
        {"scope": 7},
        {"scope": {"runfold:read": 1}},
    ):
        assert (await tokens_of(provider).read(provider.token(**claims))).principal.scopes == frozenset()


async def test_a_tenant_claim_keeps_the_tokens_of_others_out(provider):
    tokens = tokens_of(provider, oidc_tenant_claim="org")

    assert await tokens.read(provider.token(org="runfold"))
    assert await tokens.read(provider.token(org=["another", "runfold"]))
    for claims in ({"org": "another"}, {}, {"org": {"runfold": 1}}):
        with pytest.raises(UnauthenticatedError, match="tenant"):
            await tokens.read(provider.token(**claims))


async def test_a_tenant_claim_names_one_tenant_of_the_installation(provider):
    made = settings_of(provider, oidc_tenant_claim="org")
    tokens = Tokens(made, ProviderKeys(provider.issuer), {"runfold", "acme", "initech"}.__contains__)

    for claim, tenant in (("acme", "acme"), ("runfold", "runfold"), (["acme", "unknown"], "acme")):
        assert (await tokens.read(provider.token(org=claim))).principal.tenant == tenant
    for claim in ("umbrella", "", [], 7, ["acme", "initech"], ["runfold", "acme"]):
        with pytest.raises(UnauthenticatedError, match="tenant"):
            await tokens.read(provider.token(org=claim))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oidc_issuer": "https://idp.example", "oidc_audience": "a"}, "authentication"),
        ({"oidc_issuer": "https://idp.example", "authentication": "required"}, "oidc_audience"),
        ({"oidc_issuer": "http://idp.example", "oidc_audience": "a", "authentication": "required"}, "https"),
        ({"oidc_issuer": "file:///etc/passwd", "oidc_audience": "a", "authentication": "required"}, "https"),
        ({"oidc_scopes": {"x": ["everything"]}}, "publish"),
        ({"authentication": "maybe"}, "required"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Settings(**settings)
