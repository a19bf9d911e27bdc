"""Takes what is meant for the metadata server to the proxy, as a node's redirect does it.

For libraries that ask its names and nothing else, whatever the environment says.
"""

import os
import socket

NAMES = {"metadata.google.internal", "metadata.google.internal."}
HOST, PORT = os.environ["GCE_METADATA_HOST"].rsplit(":", 1)
PROXY = (HOST, int(PORT))


def redirect():
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def resolve_here(host, port, *args, **kwargs):
        if host not in NAMES:
            return resolve(host, port, *args, **kwargs)
        return resolve(HOST, PORT, *args, **kwargs)

    def connect_here(self, address):
        return connect(self, PROXY if address[0] in NAMES else address)

    socket.getaddrinfo, socket.socket.connect = resolve_here, connect_here
