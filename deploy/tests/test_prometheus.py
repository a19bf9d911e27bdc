"""A real Prometheus, told what the operator tells it of a PodMonitor, scrapes each container once that has metrics."""

import json
import os
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from socket import socket

import yaml

import rendered

# All that has metrics.
CHART = rendered.CHARTS["tests/everything"]
REMOVAL = ["--set", "podMonitor.enabled=true,redirect.enabled=false,redirect.remove=true,canary.enabled=false"]
PROXY, REDIRECT, CANARY = ("proxy", "10.0.0.7:989"), ("redirect", "10.0.0.7:1990"), ("canary", "10.0.0.7:8989")


class Targets(unittest.TestCase):
    def test_each_pod_is_scraped_once_and_its_job_is_one_that_the_rules_know(self):
        for where, objects, wanted in [
            ("tests/everything", rendered.kustomize("tests/everything"), [CANARY, PROXY, REDIRECT]),
            ("chart", rendered.helm(*CHART), [CANARY, PROXY, REDIRECT]),
            # An init container is discovered as well.
            ("chart, removal", rendered.helm(*REMOVAL), [PROXY]),
        ]:
            with self.subTest(where):
                found = targets(objects)
                self.assertEqual(sorted((labels["container"], labels["instance"]) for labels in found), wanted)
                self.assertEqual({labels["node"] for labels in found}, {"node-1"})
                for labels in found:
                    self.assertRegex(labels["job"], f"^({jobs_of_the_rules()})$")

    def test_addresses_of_ipv6_have_brackets(self):
        for where, objects in [("tests/everything", rendered.kustomize("tests/everything")), ("chart", rendered.helm(*CHART))]:
            with self.subTest(where):
                found = {labels["instance"] for labels in targets(objects, "fd00::7")}
                self.assertEqual(found, {f"[fd00::7]:{port}" for port in (989, 1990, 8989)})


def jobs_of_the_rules():
    """The jobs by which the alert MetadataProxyNotScraped knows targets."""
    [rule] = [one for one in rendered.kustomize("observability") if one["kind"] == "PrometheusRule"]
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    [expression] = [one["expr"] for one in alerts if one.get("alert") == "MetadataProxyNotScraped"]
    return re.search(r'job=~"(.*?)"', expression).group(1)


def targets(objects, ip="10.0.0.7"):
    """The labels of what a Prometheus would scrape of these objects on one node."""
    pods = [one["spec"]["template"] for one in objects if one["kind"] == "DaemonSet"]
    monitors = [one for one in objects if one["kind"] == "PodMonitor"]
    jobs = [job for monitor in monitors for job in as_the_operator(monitor)]
    with tempfile.TemporaryDirectory() as place:
        for index, job in enumerate(jobs):
            file = Path(place) / f"{index}.json"
            file.write_text(json.dumps([group for pod in pods for group in discovery(pod, ip)]))
            job["file_sd_configs"] = [{"files": [str(file)]}]
        # Nothing is at these addresses, so nothing is to be asked.
        config = {"global": {"scrape_interval": "1h", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (Path(place) / "prometheus.yml").write_text(yaml.safe_dump(config))
        return asked(place, len(jobs))


def discovery(pod, ip):
    """What Kubernetes' discovery says of a pod: a target for each container without ports, init containers among them."""
    meta = {
        "namespace": "kube-system", "pod_name": "a-pod", "pod_ip": ip, "pod_node_name": "node-1",
        "pod_ready": "true", "pod_phase": "Running",
    }  # fmt: skip
    for name, value in pod["metadata"]["labels"].items():
        meta |= {f"pod_label_{sanitized(name)}": value, f"pod_labelpresent_{sanitized(name)}": "true"}
    for is_init, part in (("true", "initContainers"), ("false", "containers")):
        for container in pod["spec"].get(part, []):
            assert "ports" not in container
            its = meta | {"pod_container_name": container["name"], "pod_container_init": is_init}
            yield {"targets": [meta["pod_ip"]], "labels": {f"__meta_kubernetes_{name}": value for name, value in its.items()}}


def as_the_operator(monitor):
    """The scrape configurations that the Prometheus operator makes of a PodMonitor, in the order of its rules."""
    name, namespace = (monitor["metadata"][field] for field in ("name", "namespace"))
    selected = [
        {
            "action": "keep",
            "source_labels": [f"__meta_kubernetes_pod_{of}_{sanitized(label)}" for of in ("label", "labelpresent")],
            "regex": f"({value});true",
        }
        for label, value in monitor["spec"]["selector"]["matchLabels"].items()
    ]
    copied = [
        {"source_labels": [f"__meta_kubernetes_{of}"], "target_label": label}
        for of, label in (("namespace", "namespace"), ("pod_container_name", "container"), ("pod_name", "pod"))
    ]
    for index, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"]):
        own = [{snake(key): value for key, value in rule.items()} for rule in endpoint["relabelings"]]
        job = [{"target_label": "job", "replacement": f"{namespace}/{name}"}]
        yield {
            "job_name": f"podMonitor/{namespace}/{name}/{index}",
            "metrics_path": endpoint["path"],
            "relabel_configs": [*selected, *copied, *job, *own],
        }


def asked(place, jobs):
    """The labels of the active targets of a Prometheus with the configuration in this directory, which has this many jobs."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        os.environ.get("PROMETHEUS", "prometheus"), f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return when_discovered(f"http://{address}/api/v1/targets", jobs)
        finally:
            process.terminate()


def when_discovered(url, jobs):
    """Some seconds after its start. What it drops is discovered, too; each job has a file of its own."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                known = json.load(answer)["data"]
        except OSError:
            known = {"activeTargets": [], "droppedTargets": []}
        discovered = known["activeTargets"] + known["droppedTargets"]
        if len({target["discoveredLabels"]["__meta_filepath"] for target in discovered}) == jobs:
            return [target["labels"] for target in known["activeTargets"]]
        time.sleep(0.2)
    raise AssertionError("Prometheus did not discover all within a minute")


def sanitized(label):
    return "".join(letter if letter.isalnum() else "_" for letter in label)


def snake(key):
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)


if __name__ == "__main__":
    unittest.main()
