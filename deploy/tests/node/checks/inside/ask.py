"""Asks for each argument once and prints what came, a JSON object on each line.

An argument is a path, or PORT:PATH for another port than 80, or HOST:PORT:PATH."""

import http.client
import json
import sys

import asking


def one(target):
    where, path = target.split("/", 1)
    *host, port = [part for part in where.split(":") if part] or ["80"]
    try:
        status, server, body = asking.ask("/" + path, asking.connection(int(port), *host))
    except (OSError, http.client.HTTPException) as error:
        return {"asked": target, "status": 0, "server": "", "body": "", "error": f"{type(error).__name__} {error}"}
    return {"asked": target, "status": status, "server": server, "body": body, "error": ""}


for target in sys.argv[1:]:
    print(json.dumps(one(target)))
