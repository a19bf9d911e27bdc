"""gcs-oauth2-boto-plugin, the credentials of gsutil.

It asks http://metadata.google.internal and nothing else, so what is meant for that name is taken to the proxy here, as a
node's redirect does it.
"""

import importlib.metadata
import os
import socket

from gcs_oauth2_boto_plugin import oauth2_client

NAME = "metadata.google.internal"
HOST, PORT = os.environ["GCE_METADATA_HOST"].rsplit(":", 1)
PROXY = (HOST, int(PORT))


def redirect():
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def resolve_here(host, *args, **kwargs):
        return resolve(HOST if host == NAME else host, *args, **kwargs)

    def connect_here(self, address):
        return connect(self, PROXY if address[0] == NAME else address)

    socket.getaddrinfo, socket.socket.connect = resolve_here, connect_here


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
