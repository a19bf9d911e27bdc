"""What goes into the binary comes from crates.io, under licences that ask for no more than to be named."""

import re
import sys
import unittest

import rendered

sys.path.insert(0, str(rendered.DEPLOY / "image"))

import parts  # noqa: E402

REPOSITORY = rendered.DEPLOY.parent
# CDLA-Permissive-2.0 is for data: webpki-roots, a list of authorities.
ALLOWED = {"Apache-2.0", "BSD-3-Clause", "CDLA-Permissive-2.0", "ISC", "MIT", "Unicode-3.0", "Zlib"}
# Each is replaced by something better kept: of the memory-unsafe, the unmaintained, and what needs a C library.
BANNED = {"openssl-sys", "serde_yaml", "serde_yml", "rustls-pemfile", "atty", "instant", "derivative", "backoff", "async-std"}

CRATES = sorted({crate for architecture in parts.TARGETS for crate in parts.crates(architecture)})


def is_allowed(licence):
    """Whether one of the choices that an SPDX expression gives is made of allowed licences; WITH adds permissions only."""
    licence = re.sub(r" WITH \S+", "", licence).replace("/", " OR ")
    every = licence.split(" AND ")
    return all(any(choice.strip("() ") in ALLOWED for choice in part.split(" OR ")) for part in every)


class Dependencies(unittest.TestCase):
    def test_their_licences_are_allowed(self):
        self.assertGreater(len(CRATES), 50)
        for crate in CRATES:
            with self.subTest(crate.name, licence=crate.licence):
                self.assertTrue(is_allowed(crate.licence))

    def test_an_expression_is_read_as_spdx_means_it(self):
        for licence in ["MIT", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception", "X/MIT"]:
            self.assertTrue(is_allowed(licence), licence)
        for licence in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND MPL-2.0"]:
            self.assertFalse(is_allowed(licence), licence)

    def test_none_is_banned(self):
        self.assertEqual({crate.name for crate in CRATES} & BANNED, set())

    def test_the_notices_fit(self):
        rendered.run(rendered.DEPLOY / "image" / "notices", "--check")

    def test_all_come_from_the_public_registry(self):
        sources = set(re.findall(r'^source = "(.*)"$', (REPOSITORY / "Cargo.lock").read_text(), re.MULTILINE))
        self.assertEqual(sources, {"registry+https://github.com/rust-lang/crates.io-index"})


if __name__ == "__main__":
    unittest.main()
