"""Asks again and again until a file is there, and prints each change of what comes, a JSON object on each line.

    poll.py [--again] STOP-FILE EVERY-SECONDS PATH...

Each path is asked for on a new connection, and on one that is kept. With --again a request that fails is sent again, as client
libraries do: a second later, and for up to a minute, since an emulated node on a busy computer is slow for as long."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import asking

*flags, stop, every = (word for word in sys.argv[1:] if not word.startswith("/compute"))
stop, every, paths = Path(stop), float(every), [word for word in sys.argv[1:] if word.startswith("/compute")]
AGAIN_FOR = 60 if flags == ["--again"] else 0


def write(**what):
    print(json.dumps(what))


write(began=time.time())
kept = asking.connection()
last, counts, failures, repeated = {}, Counter(), [], 0
while not stop.exists():
    for path in paths:
        for how, through in (("new", None), ("kept", kept)):
            at = time.time()
            outcome = asking.outcome(path, through)
            while outcome.startswith("failed") and time.time() < at + AGAIN_FOR:
                repeated += 1
                time.sleep(1)
                outcome = asking.outcome(path, through)
            counts[outcome] += 1
            if outcome.startswith("failed"):
                failures.append((at, time.time()))
            if last.get((path, how)) != outcome:
                last[path, how] = outcome
                write(at=at, path=path, how=how, outcome=outcome)
    time.sleep(every)
write(ended=time.time(), counts=counts, failures=failures, repeated=repeated)
