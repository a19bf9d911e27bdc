"""The guest agent's watch of everything, by which it learns about new SSH keys.

The agent is a system service and in no package registry: this asks as its `metadata` package is documented to ask. It begins
with the ETag `NONE`, and asks again with the ETag of each answer.
"""

import json
import os
import time
import urllib.request

ROOT = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/"
# Seconds that the server keeps the agent waiting: 60, as the agent asks, is longer than a test should last.
TIMEOUT = 2


def version():
    return "watch"


def watch(etag):
    query = f"?timeout_sec={TIMEOUT}&last_etag={etag}&alt=json&recursive=true&wait_for_change=true"
    request = urllib.request.Request(ROOT + query, headers={"Metadata-Flavor": "Google"})
    # The agent gives an answer ten seconds more than it lets the server wait.
    with urllib.request.urlopen(request, timeout=TIMEOUT + 10) as response:
        return json.load(response), response.headers["ETag"]


def steps():
    def crawl():
        tree, _ = watch("NONE")
        return str(tree["instance"]["id"])

    def change():
        _, etag = watch("NONE")
        began = time.monotonic()
        _, again = watch(etag)
        waited = time.monotonic() - began
        if waited < TIMEOUT - 0.1 or again != etag:
            raise RuntimeError(f"told again after {waited:.1f} s with the ETag {again} instead of {etag}")
        return True

    return {"crawl": crawl, "watch": change}
