"""gcs-oauth2-boto-plugin, the credentials of gsutil."""

import importlib.metadata

from gcs_oauth2_boto_plugin import oauth2_client

from redirect import redirect

redirect()


def version():
    return importlib.metadata.version("gcs-oauth2-boto-plugin")


def token():
    return oauth2_client.OAuth2GCEClient().FetchAccessToken().token


def steps():
    client = oauth2_client.OAuth2GCEClient()
    return {
        "detect": oauth2_client._IsGCE,
        "token": lambda: client.GetAccessToken().token,
        "refresh": lambda: client.FetchAccessToken().token,
    }
