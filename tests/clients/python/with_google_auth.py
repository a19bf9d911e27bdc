"""google-auth, of today and of 2020."""

import importlib.metadata

import google.auth
from google.auth import compute_engine
from google.auth.compute_engine import _metadata
from google.auth.transport.requests import Request

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def version():
    return importlib.metadata.version("google-auth")


def token():
    # A scope of its own, so that this is no token that the proxy has from its start.
    credentials = compute_engine.Credentials(scopes=["https://www.googleapis.com/auth/devstorage.read_only"])
    credentials.refresh(Request())
    return credentials.token


def steps():
    request = Request()
    plain, scoped = None, None

    def project():
        nonlocal plain
        plain, project = google.auth.default()
        return project

    def refreshed(credentials):
        credentials.refresh(request)
        return credentials.token

    def first_scoped():
        nonlocal scoped
        scoped, _ = google.auth.default(scopes=SCOPES)
        return refreshed(scoped)

    def identity():
        wanted = {"target_audience": "https://example.com", "use_metadata_identity_endpoint": True}
        credentials = compute_engine.IDTokenCredentials(request, **wanted)
        return refreshed(credentials)

    return {
        "detect": lambda: _metadata.ping(request),
        "project": project,
        "token": lambda: refreshed(plain),
        "account": lambda: plain.service_account_email,
        "scoped": first_scoped,
        "refresh": lambda: refreshed(scoped),
        "identity": identity,
        "universe": lambda: plain.universe_domain,
    }
