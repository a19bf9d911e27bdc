"""A stand-in of Google's Security Token Service: the token that it gives says whose token it was given."""

import base64
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# As the manifest `identity` has it.
ADDRESS = ("127.0.0.1", 8085)
# Seconds that a token lives.
LIFE = 3600


def token_of(subject):
    return f"of.{subject.replace(':', '.')}"


def claims(token):
    middle = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))


class Sts:
    """It serves until the end of the `with` block."""

    def __init__(self):
        self.exchanges = Counter()
        # When the last token of each subject was given.
        self.given = {}
        self.bound_to = set()

    def __enter__(self):
        sts = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = claims(asked["subjectToken"])
                sts.exchanges[found["sub"]] += 1
                sts.given[found["sub"]] = time.time()
                sts.bound_to.add(found["kubernetes.io"]["pod"]["name"])
                answer = json.dumps({"access_token": token_of(found["sub"]), "expires_in": LIFE, "token_type": "Bearer"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(ADDRESS, Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
