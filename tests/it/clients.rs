//! Real clients against the real binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use gce_metadata_proxy::mock::{DEFAULT_ACCOUNT, Mock};
use serde_json::Value;
use tokio::process::Command;

use crate::support::Binary;

async fn output(command: &mut Command) -> String {
    let output = command.kill_on_drop(true).output().await.expect("the program is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn curl_gets_a_token_whose_life_runs_down() {
    let mock = Mock::start().await;
    let (_binary, addr) = Binary::proxy(mock.addr()).await;
    let url = format!("http://{addr}/computeMetadata/v1/instance/service-accounts/default/token");
    let mut lives = Vec::new();
    for _ in 0..2 {
        let token = output(Command::new("curl").args(["-sS", "-H", "Metadata-Flavor: Google", &url])).await;
        let token: Value = serde_json::from_str(&token).expect("JSON");
        assert!(token["access_token"].as_str().is_some_and(|token| token.starts_with("ya29.")), "{token}");
        lives.push(token["expires_in"].as_u64().expect("whole seconds"));
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    }
    assert!(lives[0] > lives[1] && lives[1] > 3500, "{lives:?}");
}

#[tokio::test]
async fn pythons_google_auth_gets_a_token() {
    let mock = Mock::start().await;
    let (_binary, addr) = Binary::proxy(mock.addr()).await;
    let python = python_with_google_auth().await;
    let printed = output(on_gce(Command::new(python).arg(client("python/application.py")), addr)).await;
    let seen: Value = serde_json::from_str(&printed).expect("one JSON line");
    assert_eq!(seen["credentials"], "google.auth.compute_engine.credentials");
    assert_eq!(seen["project"], "mock-project");
    assert_eq!(seen["account"], DEFAULT_ACCOUNT);
    assert_eq!(seen["universe"], "googleapis.com");
    assert_eq!(seen["valid"], true);
    assert!(seen["token"].as_str().is_some_and(|token| token.starts_with("ya29.")), "{seen}");
}

/// Points a Google library at the proxy, and away from any other credentials of this machine.
fn on_gce(command: &mut Command, addr: SocketAddr) -> &mut Command {
    let addr = addr.to_string();
    command
        .env("GCE_METADATA_HOST", &addr)
        .env("GCE_METADATA_IP", &addr)
        .env("HOME", "/nonexistent")
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .env_remove("GOOGLE_CLOUD_PROJECT")
}

fn client(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

/// A virtual environment with the library, made when it is missing or its versions have changed.
async fn python_with_google_auth() -> PathBuf {
    let requirements = client("python/requirements.txt");
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let (python, installed) = (venv.join("bin/python"), venv.join("installed.txt"));
    let wanted = std::fs::read_to_string(&requirements).expect("the list of versions");
    if std::fs::read_to_string(&installed).ok().as_ref() != Some(&wanted) {
        output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv)).await;
        output(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements))
            .await;
        std::fs::write(&installed, wanted).expect("the build directory can be written");
    }
    python
}
