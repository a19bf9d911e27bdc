"""Requests of a pod to the metadata server's address."""

import http.client
import os

SERVER = "169.254.169.254"
V1 = "/computeMetadata/v1/"
TOKEN = V1 + "instance/service-accounts/default/token"
SECRET = V1 + "instance/attributes/kube-env"

# Seconds. Emulated nodes are slow; a connection that is refused fails at once.
PATIENCE = float(os.environ.get("PATIENCE", "30"))
HEADERS = {"Metadata-Flavor": "Google"}


def connection(port=80, host=SERVER, patience=PATIENCE):
    return http.client.HTTPConnection(host, port, timeout=patience)


def ask(path, through=None):
    """The status, the server's name and the body. Without a connection it makes one of its own."""
    through = through or connection()
    through.request("GET", path, headers=HEADERS)
    answer = through.getresponse()
    return answer.status, answer.getheader("Server", ""), answer.read().decode(errors="replace")


def outcome(path, through=None):
    """What became of a request, in a word or two."""
    try:
        status, _, body = ask(path, through)
    except (OSError, http.client.HTTPException) as error:
        if through:
            through.close()
        return f"failed: {type(error).__name__} {error}".strip()
    if "MOCK-SECRET" in body:
        return "open"
    return {200: "served", 403: "concealed"}.get(status, f"failed: {status} {body.strip()[:120]}")
