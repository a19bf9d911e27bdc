"""google-cloud-logging: what it takes the platform for, in the name of which it writes."""

import importlib.metadata

from google.cloud.logging_v2.handlers._monitored_resources import detect_resource

from redirect import redirect

redirect()


def version():
    return importlib.metadata.version("google-cloud-logging")


def steps():
    def platform():
        found = detect_resource()
        # A plain VM is a "gce_instance".
        return f"{found.type} {found.labels.get('cluster_name')} {found.labels.get('location')}"

    return {"platform": platform}
