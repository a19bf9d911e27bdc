"""The chart renders what the overlays render, and refuses values that it does not understand."""

import difflib
import unittest

import yaml

import rendered

# What Helm's users expect on every object, and Kustomize's do not.
HELMS = ["helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "app.kubernetes.io/version"]


class Chart(unittest.TestCase):
    def test_it_renders_the_same_objects_as_kustomize(self):
        for folder, arguments in rendered.CHARTS.items():
            ours = {rendered.name_of(found): found for found in rendered.kustomize(folder)}
            charts = {rendered.name_of(found): found for found in rendered.helm(*arguments)}
            with self.subTest(folder):
                self.assertEqual(sorted(ours), sorted(charts))
            for name in ours:
                with self.subTest(folder, object=name):
                    self.assertEqual(difference(ours[name], without_helms_labels(charts[name])), "")

    def test_it_takes_more_values(self):
        [daemonset] = self.daemonsets(
            "--set", "image.repository=r.example/p,image.tag=v1", "--set", "image.pullSecrets[0].name=s",
            "--set", "extraArgs={--max-in-flight=400}", "--set", "resources.limits.cpu=null",
        )  # fmt: skip
        pod = daemonset["spec"]["template"]["spec"]
        self.assertEqual(pod["containers"][0]["image"], "r.example/p:v1")
        self.assertEqual(pod["imagePullSecrets"], [{"name": "s"}])
        self.assertEqual(pod["containers"][0]["args"][-1], "--max-in-flight=400")
        self.assertNotIn("cpu", pod["containers"][0]["resources"]["limits"])

    def test_it_refuses_values_that_it_does_not_understand(self):
        for mistake in [
            "redirect.enabled=maybe",
            "redirect.enable=true",
            "redirect.remove=true",
            "image.pullPolicy=Sometimes",
            "policy.document.extends=strict",
            "policy.document.apiVersion=v1",
            "resources.limits.memory=null",
            "extraArgs={max-in-flight=400}",
            "podMonitor.interval=often",
            "tolerations={}",
        ]:
            with self.subTest(mistake), self.assertRaisesRegex(AssertionError, "schema"):
                rendered.helm("--set", mistake)

    @staticmethod
    def daemonsets(*arguments):
        return [found for found in rendered.helm(*arguments) if found["kind"] == "DaemonSet"]


def without_helms_labels(found):
    if isinstance(found, dict):
        return {key: without_helms_labels(value) for key, value in found.items() if key not in HELMS}
    if isinstance(found, list):
        return [without_helms_labels(value) for value in found]
    return found


def difference(ours, charts):
    lines = [yaml.safe_dump(read(found)).splitlines() for found in (ours, charts)]
    return "\n".join(difflib.unified_diff(*lines, "kustomize", "helm", lineterm=""))


def read(found):
    """A ConfigMap's files as the documents that they are: the order of a document's keys says nothing."""
    if found["kind"] != "ConfigMap":
        return found
    return found | {"data": {name: yaml.safe_load(text) for name, text in found["data"].items()}}


if __name__ == "__main__":
    unittest.main()
