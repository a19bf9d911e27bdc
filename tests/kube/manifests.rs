//! Applies the manifests that the project ships.

use std::path::Path;

use serde_json::Value;

use super::client::Client;

impl Client {
    /// Creates the objects of a file in `deploy/`.
    pub fn apply(&mut self, file: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        assert!(!objects.is_empty(), "{} is empty", path.display());
        for object in &objects {
            self.create(&collection(object), object);
        }
    }
}

/// Where objects of this kind are created.
fn collection(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or_else(|| panic!("no {field}: {object}"));
    let kind = text("kind").to_lowercase();
    let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    format!("/apis/{}/{plural}", text("apiVersion"))
}
