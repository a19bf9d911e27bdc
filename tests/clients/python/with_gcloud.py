"""What gcloud asks before each command, and by which rules.

The Cloud SDK is in no package registry, so this does what its `core/credentials/gce.py`, `gce_read.py` and `gce_cache.py` are
documented to do: the requests of `gcloud storage ls` with an empty configuration, in their order. It gets its tokens with
google-auth; here they are asked for with the same two lines of urllib as everything else.
"""

import json
import os
import random
import time
import urllib.error
import urllib.request

ROOT = f"http://{os.environ['GCE_METADATA_ROOT']}/computeMetadata/v1/"
ACCOUNT = "instance/service-accounts/default/"
# gcloud's own, for which it asks whenever it loads or refreshes credentials.
AUDIENCE = "32555940559.apps.googleusercontent.com"
SCOPES = "https://www.googleapis.com/auth/cloud-platform,https://www.googleapis.com/auth/userinfo.email"

# Seconds: `gce_metadata_check_timeout_sec`, `gce_metadata_read_timeout_sec`.
CHECK_TIMEOUT, READ_TIMEOUT = 3, 20
# Besides the first attempt, with a pause of up to a second before each.
RETRIES = 3

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class MetadataServerException(Exception):
    pass


def version():
    return "528.0.0"


def read_no_proxy(path, timeout):
    request = urllib.request.Request(ROOT + path, headers={"Metadata-Flavor": "Google"})
    with OPENER.open(request, timeout=timeout) as response:
        return response.read().decode()


def retried(attempt):
    for _ in range(RETRIES):
        try:
            return attempt()
        except Exception:
            time.sleep(random.random())
    return attempt()


def read(path, ignored=()):
    def attempt():
        try:
            return read_no_proxy(path, READ_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code in ignored:
                return None
            if error.code == 403:
                told = error.read().decode()
                raise MetadataServerException(f"Please check if the metadata server is concealed. {told}") from error
            raise MetadataServerException(error) from error

    return retried(attempt)


def id_token():
    return read(f"{ACCOUNT}identity?audience={AUDIENCE}&format=standard&licenses=FALSE", ignored=(404,))


def access_token(email, scopes):
    # It names the account by its e-mail, and wants its scopes first.
    json.loads(read(f"instance/service-accounts/{email}/?recursive=true"))["scopes"]
    return json.loads(read(f"{ACCOUNT}token?scopes={scopes}"))["access_token"]


def token():
    # A scope of its own, so that this is no token that the proxy has from its start.
    id_token()
    return access_token("default", "https://www.googleapis.com/auth/devstorage.read_only")


def steps():
    def on_gce():
        return retried(lambda: read_no_proxy("project/numeric-project-id", CHECK_TIMEOUT)).isdigit()

    def account():
        email = read(f"{ACCOUNT}email", ignored=(404,))
        accounts = [line.strip("/") for line in read("instance/service-accounts/").split()]
        if email not in accounts:
            raise MetadataServerException(f"{email} is none of {accounts}")
        return email

    def refreshed():
        id_token()
        return access_token(account(), SCOPES)

    def print_identity_token():
        # `gcloud auth print-identity-token --audiences`: what is raised by `read` ends it with a stack trace.
        try:
            token = read(f"{ACCOUNT}identity?audience=https://example.com&format=standard&licenses=FALSE", ignored=(404,))
        except MetadataServerException as error:
            raise RuntimeError("gcloud crashed") from error
        if token is None:
            raise RuntimeError("No identity token can be obtained from the current credentials.")
        return token

    return {
        "identity": print_identity_token,
        "detect": on_gce,
        "universe": lambda: read("universe/universe-domain", ignored=(404,)) or "googleapis.com",
        "project": lambda: read("project/project-id"),
        "account": account,
        "scoped": refreshed,
        "refresh": refreshed,
    }
