"""opentelemetry-resourcedetector-gcp: what it takes the platform for."""

import importlib.metadata
import os

from opentelemetry.resourcedetector.gcp_resource_detector import GoogleCloudResourceDetector

from redirect import redirect

redirect()
# As every pod has it.
os.environ["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"


def version():
    return importlib.metadata.version("opentelemetry-resourcedetector-gcp")


def steps():
    def platform():
        found = GoogleCloudResourceDetector(raise_on_error=True).detect().attributes
        return f"{found['cloud.platform']} {found['k8s.cluster.name']} {found['cloud.region']}"

    return {"platform": platform}
