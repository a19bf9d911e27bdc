"""The API server, without the seconds that each kubectl takes to start on an emulated processor."""

import http.client
import json
import ssl
from pathlib import Path

KEYS = Path("/node/tls")
ADDRESS = ("127.0.0.1", 6443)


def request(method, path, body=None):
    """The text of an answer; what is not there is a LookupError."""
    context = ssl.create_default_context(cafile=KEYS / "ca.crt")
    context.load_cert_chain(KEYS / "admin.crt", KEYS / "admin.key")
    connection = http.client.HTTPSConnection(*ADDRESS, context=context, timeout=60)
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    if answer.status == http.client.NOT_FOUND:
        raise LookupError(text)
    if answer.status >= http.client.BAD_REQUEST:
        raise AssertionError(f"{method} {path}: {answer.status} {text}")
    return text


def get(path):
    return json.loads(request("GET", path))


def pods(namespace):
    return f"/api/v1/namespaces/{namespace}/pods"


def log(namespace, pod, container, **options):
    """What a container wrote; nothing if it has not begun."""
    query = "".join(f"&{key}=true" for key in options)
    try:
        return request("GET", f"{pods(namespace)}/{pod}/log?container={container}{query}")
    except (AssertionError, LookupError):
        return ""
