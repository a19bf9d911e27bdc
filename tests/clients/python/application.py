"""Does what a Python application does with its credentials, and prints one JSON line about it.

usage: application.py LIBRARY session STEP...
       application.py LIBRARY token         one token, as a process that starts
       application.py LIBRARY many COUNT    so many tokens at once, a thread each
       application.py LIBRARY stay FILE     token after token, none remembered, until FILE exists

LIBRARY is a module beside this one: with_google_auth, with_oauth2client or with_boto_plugin.
"""

import importlib
import json
import logging
import os
import sys
import threading
import warnings

# What libraries have to say about retries is not the application's line.
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")


def attempt(step):
    try:
        return {"ok": step()}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}


def session(library, names):
    steps = library.steps()
    return {"steps": {name: attempt(steps[name]) for name in names}}


def tally(outcomes):
    errors = [outcome["error"] for outcome in outcomes if "error" in outcome]
    return {"tokens": [outcome["ok"] for outcome in outcomes if "ok" in outcome], "errors": errors}


def many(library, count):
    outcomes = []
    start = threading.Barrier(count)

    def one():
        start.wait()
        outcomes.append(attempt(library.token))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally(outcomes)


def stay(library, file):
    outcomes = []
    while not os.path.exists(file):
        outcomes.append(attempt(library.token))
    return tally(outcomes)


def main(name, mode, *rest):
    library = importlib.import_module(name)
    if mode == "session":
        seen = session(library, rest)
    elif mode == "token":
        seen = tally([attempt(library.token)])
    elif mode == "many":
        seen = many(library, int(rest[0]))
    elif mode == "stay":
        seen = stay(library, rest[0])
    print(json.dumps({"version": library.version(), **seen}))


main(*sys.argv[1:])
