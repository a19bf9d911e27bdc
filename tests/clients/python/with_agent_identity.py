"""google-auth in a pod with an agent certificate, which is made here: it requests tokens by POST, and by nothing else."""

import datetime
import json
import os
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth import compute_engine
from google.auth.transport.requests import Request

from with_google_auth import SCOPES, version  # noqa: F401

ACCOUNT = os.environ.get("AGENT", "ns/shop/sa/checkout")
SPIFFE = "spiffe://agents.global.org-123456.system.id.goog/" + ACCOUNT
OPT_OUT = "GOOGLE_API_ENABLE_RUNTIME_BOUND_TOKEN"


def certificate():
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SPIFFE)])
    signed = builder.add_extension(names, critical=True).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def mount():
    folder = tempfile.mkdtemp()
    paths = {name: os.path.join(folder, name) for name in ("certificates.pem", "config.json")}
    with open(paths["certificates.pem"], "wb") as file:
        file.write(certificate())
    with open(paths["config.json"], "w") as file:
        json.dump({"cert_configs": {"workload": {"cert_path": paths["certificates.pem"]}}}, file)
    os.environ["GOOGLE_API_CERTIFICATE_CONFIG"] = paths["config.json"]


mount()


def token():
    credentials = compute_engine.Credentials(scopes=SCOPES)
    credentials.refresh(Request())
    return credentials.token


def steps():
    def opted_out():
        os.environ[OPT_OUT] = "false"
        return token()

    return {"bound": token, "scoped": opted_out, "refresh": token}
