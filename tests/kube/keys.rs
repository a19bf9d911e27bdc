//! Keys, certificates and kubeconfigs.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::NODE;

/// rustls takes certificates of version 3 only, which are those with extensions.
const EXTENSIONS: &str = "[req]
distinguished_name = subject
[subject]
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[server]
subjectAltName = IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc
extendedKeyUsage = serverAuth
[client]
extendedKeyUsage = clientAuth
";

/// Makes an authority (ca), the server's certificate, those of an administrator and of a node, and the key that signs tokens of
/// accounts.
pub(super) fn make(dir: &Path) {
    fs::write(dir.join("extensions"), EXTENSIONS).expect("target/tmp can be written");
    certificate(dir, "ca", "ca", "/CN=ca");
    certificate(dir, "server", "server", "/CN=kube-apiserver");
    certificate(dir, "admin", "client", "/O=system:masters/CN=admin");
    certificate(dir, "node", "client", &format!("/O=system:nodes/CN=system:node:{NODE}"));
    openssl(dir, "genrsa -out accounts.key 2048");
    openssl(dir, "rsa -in accounts.key -pubout -out accounts.pub");
}

/// Makes NAME.key and NAME.crt. The authority signs itself.
fn certificate(dir: &Path, name: &str, extensions: &str, subject: &str) {
    let signer = if name == "ca" { "" } else { " -CA ca.crt -CAkey ca.key" };
    openssl(
        dir,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -config extensions \
             -extensions {extensions} -subj {subject} -keyout {name}.key -out {name}.crt{signer}"
        ),
    );
}

/// Runs it in a directory, and returns its output.
pub fn openssl(dir: &Path, words: &str) -> String {
    let output = Command::new("openssl").args(words.split(' ')).current_dir(dir).output().expect("openssl is here");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("PEM, or nothing")
}

/// Writes a kubeconfig, whose user is given as YAML.
pub(super) fn kubeconfig(dir: &Path, name: &str, addr: SocketAddr, user: &str) -> PathBuf {
    let file = dir.join(format!("{name}.kubeconfig"));
    let ca = dir.join("ca.crt");
    let text = format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: \"https://{addr}\", certificate-authority: {}}}}}]
users: [{{name: {name}, user: {user}}}]
contexts: [{{name: test, context: {{cluster: test, user: {name}}}}}]
current-context: test
",
        ca.display()
    );
    fs::write(&file, text).expect("target/tmp can be written");
    file
}
