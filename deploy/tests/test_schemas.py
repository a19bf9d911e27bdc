"""Every object is what Kubernetes' own schemas allow, with no field that they do not know."""

import unittest

import kubernetes_validate
from kubernetes_validate import utils

import rendered

# Kubernetes' schemas do not have it: the Prometheus operator defines it.
FOREIGN = {"PodMonitor"}
# Sidecars came with 1.29 (alpha in 1.28), admission policies and recursiveReadOnly with 1.30. The right to act as a node
# (1.36) is in no schema. The rest works from 1.25.
SINCE = {"sidecar/environment": "1.28", "sidecar/redirect": "1.28", "tests/startup-taint": "1.30"}
SINCE |= {where: "1.30" for where, way in rendered.IDENTITY.items() if way != "kubelet"}
SINCE |= {doctor: SINCE[of] for doctor, of in rendered.DOCTORS.items() if of in SINCE}


class Schemas(unittest.TestCase):
    def test_every_object_is_valid_in_every_version(self):
        versions = utils.all_versions()
        self.assertIn("1.25.0", versions)
        for where, found in rendered.everything():
            if found["kind"] in FOREIGN:
                continue
            since = SINCE.get(where.removeprefix("chart as "), "1.25")
            oldest = tuple(map(int, since.split(".")))
            for version in versions:
                if tuple(map(int, version.split(".")))[:2] < oldest:
                    continue
                with self.subTest(where, object=rendered.name_of(found), version=version):
                    self.assertEqual(self.complaint(found, version), None)

    @staticmethod
    def complaint(found, version):
        try:
            kubernetes_validate.validate(found, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{'.'.join(map(str, error.path))}: {error.message}"
        return None

    def test_foreign_objects_have_only_fields_that_their_operator_knows(self):
        monitors = [found for _, found in rendered.everything() if found["kind"] in FOREIGN]
        self.assertTrue(monitors)
        for monitor in monitors:
            self.assertEqual(monitor["apiVersion"], "monitoring.coreos.com/v1")
            self.assertEqual(set(monitor["spec"]), {"selector", "podMetricsEndpoints"})
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                self.assertLessEqual(set(endpoint), {"path", "interval", "relabelings"})
                for relabeling in endpoint["relabelings"]:
                    self.assertLessEqual(set(relabeling), {"sourceLabels", "targetLabel", "replacement"})


if __name__ == "__main__":
    unittest.main()
