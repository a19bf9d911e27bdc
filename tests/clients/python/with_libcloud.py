"""apache-libcloud: whether this is Compute Engine, and its token."""

import importlib.metadata

from libcloud.common.google import GoogleAuthType, GoogleGCEServiceAcctAuthConnection

from redirect import redirect

redirect()


def version():
    return importlib.metadata.version("apache-libcloud")


def token():
    connection = GoogleGCEServiceAcctAuthConnection("", "")
    return connection.get_new_token()["access_token"]


def steps():
    return {"detect": lambda: GoogleAuthType.guess_type("") == GoogleAuthType.GCE, "token": token, "refresh": token}
