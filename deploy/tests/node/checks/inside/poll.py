"""Asks again and again until a file is there, and prints each change of what comes, a JSON object on each line.

    poll.py STOP-FILE EVERY-SECONDS PATH...

Each path is asked for on a new connection, and on one that is kept."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import asking

stop, every, paths = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]


def write(**what):
    print(json.dumps(what))


write(began=time.time())
kept = asking.connection()
last, counts, failures = {}, Counter(), []
while not stop.exists():
    for path in paths:
        for how, through in (("new", None), ("kept", kept)):
            at = time.time()
            outcome = asking.outcome(path, through)
            counts[outcome] += 1
            if outcome.startswith("failed"):
                failures.append((at, time.time()))
            if last.get((path, how)) != outcome:
                last[path, how] = outcome
                write(at=at, path=path, how=how, outcome=outcome)
    time.sleep(every)
write(ended=time.time(), counts=counts, failures=failures)
