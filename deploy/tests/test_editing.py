"""What users are told to edit has the effect that they are told."""

import re
import shutil
import tempfile
import unittest
from pathlib import Path

import yaml

import rendered


class Editing(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.deploy = Path(place.name) / "deploy"
        shutil.copytree(rendered.DEPLOY, self.deploy, ignore=shutil.ignore_patterns("tests"))

    def test_a_component_of_ones_own_replaces_the_policy(self):
        shipped = next(found for found in rendered.kustomize("tests/everything") if found["kind"] == "ConfigMap")
        own = next(found for found in rendered.kustomize("tests/own-policy") if found["kind"] == "ConfigMap")
        self.assertEqual(own["metadata"], shipped["metadata"])
        self.assertEqual(self.name_of_policy("tests/own-policy"), "our-cluster")

    def test_a_copy_of_the_component_can_be_edited(self):
        copy = self.deploy / "overlays/mine/policy"
        shutil.copytree(self.deploy / "components/strict-policy", copy)
        policy = copy / "policy.yaml"
        policy.write_text(policy.read_text().replace("name: cluster\n", "name: mine\n"))
        kustomization = (self.deploy / "overlays/self-managed/kustomization.yaml").read_text()
        named = kustomization.replace("# - ../../components/strict-policy", "- policy")
        (copy.parent / "kustomization.yaml").write_text(named)
        self.assertEqual(self.name_of_policy(copy.parent), "mine")

    def test_an_overlay_can_have_the_policy_for_monitoring_agents(self):
        for file in self.deploy.glob("overlays/*/kustomization.yaml"):
            text = file.read_text()
            if "components/monitoring-policy" not in text:
                continue
            # As a reader would take the # away.
            file.write_text(re.sub(r"# (- \.\./\.\./components/(strict|monitoring)-policy)", r"\1", text))
            with self.subTest(file.parent.name):
                self.assertEqual(self.name_of_policy(file.parent), "monitoring")

    def test_images_come_from_the_registry_that_is_named(self):
        named = 0
        for file in self.deploy.glob("*/*/kustomization.yaml"):
            text = file.read_text()
            if "kind: Component" in text or "\nimages:" not in text:
                continue
            file.write_text(text.replace("    # newName: REGISTRY/", "    newName: registry.example/"))
            images = re.findall(r"image: (\S*gce-metadata-proxy\S*)", rendered.run("kubectl", "kustomize", file.parent))
            with self.subTest(file.parent.name):
                named += len(images)
                self.assertEqual([image for image in images if not image.startswith("registry.example/")], [])
            file.write_text(text)
        self.assertGreater(named, 8)

    def test_alerts_have_the_links_and_labels_that_are_named(self):
        place = self.deploy / "observability"
        for name, was, now in [
            ("runbooks.yaml", "url: deploy/observability/README.md", "url: https://git.example/README.md"),
            ("kustomization.yaml", "# labels:\n#   - pairs:", "labels:\n  - pairs:"),
        ]:
            text = (place / name).read_text()
            self.assertIn(was, text)
            (place / name).write_text(text.replace(was, now))
        objects = rendered.objects(rendered.run("kubectl", "kustomize", place))
        [rule] = [one for one in objects if one["kind"] == "PrometheusRule"]
        self.assertEqual(rule["metadata"]["labels"]["release"], "kube-prometheus-stack")
        annotations = [one["annotations"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
        self.assertTrue(annotations)
        for found in annotations:
            self.assertRegex(found["runbook_url"], r"^https://git\.example/README\.md#[a-z-]+$")

    def test_every_overlay_can_be_scraped_where_it_serves(self):
        tried = 0
        for file in self.deploy.glob("overlays/*/kustomization.yaml"):
            text = file.read_text()
            if "components/observability" not in text:
                continue
            tried += 1
            file.write_text(re.sub(r"# (- \.\./\.\./components/(observability|redirect-metrics))", r"\1", text))
            objects = rendered.objects(rendered.run("kubectl", "kustomize", file.parent))
            file.write_text(text)
            served = []
            for name in ("gce-metadata-proxy", "gce-metadata-proxy-canary"):
                ports = {}
                for container in rendered.daemonset(objects, name)["spec"]["template"]["spec"]["containers"]:
                    addresses = [arg for arg in container["args"] if re.match("--(keeper-)?metrics-addr=", arg)]
                    self.assertEqual(len(addresses), 1, container)
                    ports[container["name"]] = re.fullmatch(r"[-a-z]+=0\.0\.0\.0:(\d+)", addresses[0]).group(1)
                [monitor] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("PodMonitor", name)]
                scraped = {
                    endpoint["relabelings"][0]["regex"]: [rule["replacement"] for rule in endpoint["relabelings"] if "replacement" in rule]
                    for endpoint in monitor["spec"]["podMetricsEndpoints"]
                }
                served += ports
                with self.subTest(file.parent.name, of=name):
                    self.assertEqual(scraped, {one: [f"$1:{port}", f"[$1]:{port}"] for one, port in ports.items()})
            self.assertEqual("redirect" in served, "components/redirect\n" in text)
        self.assertGreater(tried, 3)

    def test_a_label_for_prometheus_changes_no_pod(self):
        mine = self.deploy / "overlays/mine"
        shutil.copytree(self.deploy / "overlays/self-managed", mine)
        file = mine / "kustomization.yaml"
        plain = file.read_text().replace("# - ../../components/observability", "- ../../components/observability")
        found = {}
        for text in (plain, plain + "labels:\n  - pairs: {release: kube-prometheus-stack}\n"):
            file.write_text(text)
            found[text == plain] = rendered.objects(rendered.run("kubectl", "kustomize", mine))
        monitors = [one["metadata"]["labels"]["release"] for one in found[False] if one["kind"] == "PodMonitor"]
        self.assertEqual(monitors, ["kube-prometheus-stack"] * 2)
        for name in ("gce-metadata-proxy", "gce-metadata-proxy-canary"):
            before, after = (rendered.daemonset(found[is_plain], name)["spec"] for is_plain in (True, False))
            self.assertEqual(before, after)

    def test_an_update_can_begin_on_one_node(self):
        blocks = re.findall(r"```yaml\n(.*?)```", (rendered.DEPLOY.parent / "docs/upgrade.md").read_text(), re.DOTALL)
        [patch] = [block for block in blocks if "maxSurge" in block]
        tried = 0
        for file in self.deploy.glob("overlays/*/kustomization.yaml"):
            if "\npatches:" in file.read_text() or "../../base" not in file.read_text():
                continue
            tried += 1
            file.write_text(file.read_text() + patch)
            objects = rendered.objects(rendered.run("kubectl", "kustomize", file.parent))
            with self.subTest(file.parent.name):
                strategy = rendered.daemonset(objects)["spec"]["updateStrategy"]
                self.assertEqual(strategy["rollingUpdate"], {"maxSurge": 1, "maxUnavailable": 0})
        self.assertGreater(tried, 2)

    def name_of_policy(self, folder):
        """The name of the only policy that a folder gives, which the proxy has to use."""
        objects = rendered.kustomize(folder)
        [policy] = [found for found in objects if found["metadata"]["name"] == "gce-metadata-proxy-policy"]
        pod = rendered.daemonset(objects)["spec"]["template"]["spec"]
        self.assertIn({"name": "policy", "configMap": {"name": policy["metadata"]["name"]}}, pod["volumes"])
        # Commands that are run in the container know variables, and not its arguments.
        self.assertIn({"name": "METADATA_PROXY_POLICY", "value": "/etc/gce-metadata-proxy/policy.yaml"}, pod["containers"][0]["env"])
        return yaml.safe_load(policy["data"]["policy.yaml"])["name"]


if __name__ == "__main__":
    unittest.main()
