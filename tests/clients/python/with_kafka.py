"""What Managed Kafka's login handler does, by the source of Google's local server for it: google-auth's default credentials, whose
e-mail and token it makes a token for Kafka of."""

import google.auth
from google.auth.transport.requests import Request

from with_google_auth import SCOPES, version  # noqa: F401


def handler():
    credentials, _ = google.auth.default(scopes=SCOPES)
    credentials.refresh(Request())
    return credentials


def token():
    return handler().token


def steps():
    return {"account": lambda: handler().service_account_email, "scoped": token, "refresh": token}
