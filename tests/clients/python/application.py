"""Does what a Python application does: default credentials, then a token. Prints one JSON line."""

import json

import google.auth
from google.auth.transport.requests import Request

credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
credentials.refresh(Request())
print(
    json.dumps(
        {
            "credentials": type(credentials).__module__,
            "project": project,
            "account": credentials.service_account_email,
            "token": credentials.token,
            "universe": credentials.universe_domain,
            "valid": credentials.valid,
        }
    )
)
