"""Programs in languages that are not installed here, or that are no library: their requests, replayed from their sources.

Methods, paths, hosts, headers and their order, time-outs and attempts are theirs; REPLAY names the program. What follows the
requests is what the program makes of the answers.
"""

import http.client
import json
import os
from typing import NamedTuple
from urllib.parse import urlsplit

ADDRESS, PORT = os.environ["GCE_METADATA_HOST"].rsplit(":", 1)
NAME, IP = "metadata.google.internal", "169.254.169.254"
FLAVOR = ("Metadata-Flavor", "Google")


class Program(NamedTuple):
    # Of its source: a release, or a commit.
    version: str
    target: str
    host: str
    headers: tuple
    # Seconds of an attempt. None: it has no limit.
    timeout: float | None
    attempts: int
    # The name of the instance's number in the tree: its path.
    id: tuple = ("instance", "id")
    # Headers without which an answer is none.
    needs: tuple = ()


def by_go(agent="Go-http-client/1.1"):
    return (("User-Agent", agent), FLAVOR, ("Accept-Encoding", "gzip"))


PROGRAMS = {
    # Google.Api.Gax/Platform.cs. It asks for nothing else, and without the slash.
    "dotnet": Program(
        "132a699", "/computeMetadata/v1?recursive=true", IP, (FLAVOR,), 0.5, 3, needs=("Metadata-Flavor", "Content-Length")
    ),
    # pkg/sysinfo/cloud/cloud_gcp.go of the infrastructure agent.
    "new-relic": Program("06474e5", "/computeMetadata/v1/instance/?recursive=true", NAME, by_go(), None, 1, ("id",)),
    # internal/apmcloudutil/gcp.go of apm-agent-go.
    "elastic-apm": Program("0275c4e", "/computeMetadata/v1/?recursive=true", NAME, by_go(), None, 1),
    # libbeat's processor add_cloud_metadata.
    "beats": Program("v7", "/computeMetadata/v1/?recursive=true&alt=json", IP, by_go(), 3, 1),
    # lib/facter/resolvers/gce.rb, by Ruby's Net::HTTP.
    "facter": Program(
        "2264927",
        "/computeMetadata/v1/?recursive=true&alt=json",
        NAME,
        (
            FLAVOR,
            ("Accept", "application/json"),
            ("Accept-Encoding", "gzip;q=1.0,deflate;q=0.6,identity;q=0.3"),
            ("User-Agent", "Ruby"),
        ),
        5,
        1,
    ),
}
PROGRAM = PROGRAMS[os.environ["REPLAY"]]


def version():
    return PROGRAM.version


def request(target, redirects=5):
    connection = http.client.HTTPConnection(ADDRESS, int(PORT), timeout=PROGRAM.timeout)
    try:
        connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
        for name, value in (("Host", PROGRAM.host), *PROGRAM.headers):
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        location = response.headers.get("Location")
        if response.status in (301, 302, 307, 308) and location and redirects:
            place = urlsplit(location)
            if place.netloc != PROGRAM.host:
                raise RuntimeError(f"redirected to {location}")
            return request(f"{place.path}?{place.query}" if place.query else place.path, redirects - 1)
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {body.decode(errors='replace')}")
        missing = [name for name in PROGRAM.needs if name not in response.headers]
        if missing:
            raise RuntimeError(f"{missing} missing")
        return json.loads(body)
    finally:
        connection.close()


def tree():
    for attempt in range(PROGRAM.attempts):
        try:
            return request(PROGRAM.target)
        except (OSError, RuntimeError, http.client.HTTPException):
            if attempt + 1 == PROGRAM.attempts:
                raise


def steps():
    def crawl():
        found = tree()
        for name in PROGRAM.id:
            found = found[name]
        return str(found)

    return {"crawl": crawl}
