"""Asks for a token again and again until a file is there, and compares each with the one that is this pod's own.

    own.py STOP-FILE EVERY-SECONDS OWN

The first request is sent until it is answered, as client libraries do. Each further one is sent once, on a new connection and
on one that is kept."""

import http.client
import json
import sys
import time
from collections import Counter
from pathlib import Path

import asking

stop, every, own = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]


def outcome(through=None):
    try:
        status, _, body = asking.ask(asking.TOKEN, through)
    except (OSError, http.client.HTTPException) as error:
        if through:
            through.close()
        return f"failed: {type(error).__name__} {error}"
    if status != http.client.OK:
        return f"failed: {status} {body.strip()[:200]}"
    got = json.loads(body)["access_token"]
    return "own" if got == own else f"ANOTHER'S: {got}"


begun = time.time()
while (first := outcome()).startswith("failed"):
    if time.time() > begun + 120:
        sys.exit(first)
    time.sleep(1)
print(json.dumps({"first": first, "after": time.time() - begun}))
kept, counts = asking.connection(), Counter()
while not stop.exists():
    counts[outcome()] += 1
    counts[outcome(kept)] += 1
    time.sleep(every)
print(json.dumps({"counts": counts}))
