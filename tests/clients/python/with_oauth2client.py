"""oauth2client, which Google gave up in 2018 and programs still carry."""

import importlib.metadata

import httplib2
from oauth2client import client
from oauth2client.contrib import _metadata
from oauth2client.contrib.gce import AppAssertionCredentials


def version():
    return importlib.metadata.version("oauth2client")


def token():
    credentials = AppAssertionCredentials()
    # An application that makes itself known first: what it is called, and which scopes it has.
    credentials.retrieve_scopes(httplib2.Http())
    credentials.refresh(httplib2.Http())
    return credentials.access_token


def steps():
    http = httplib2.Http()
    credentials = None

    def first():
        nonlocal credentials
        credentials = client.GoogleCredentials.get_application_default()
        return credentials.get_access_token(http).access_token

    def account():
        credentials.retrieve_scopes(http)
        return credentials.service_account_email

    def refreshed():
        credentials.refresh(http)
        return credentials.access_token

    return {
        "detect": client._in_gce_environment,
        "project": lambda: _metadata.get(http, "project/project-id"),
        "token": first,
        "account": account,
        "refresh": refreshed,
    }
