"""gcsfs, the file system of pandas and Dask, on google-auth."""

import importlib.metadata

from gcsfs.credentials import GoogleCredentials


def version():
    return importlib.metadata.version("gcsfs")


def connect(method):
    return GoogleCredentials(project=None, access="read_only", token=method)


def token():
    return connect("cloud").credentials.token


def steps():
    default = None

    def project():
        nonlocal default
        default = connect("google_default")
        return default.project

    def scoped():
        default.maybe_refresh()
        return default.credentials.token

    return {"project": project, "token": token, "scoped": scoped}
