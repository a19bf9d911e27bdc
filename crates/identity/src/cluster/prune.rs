//! [`Pruner`]: drops unneeded JSON as it arrives.
//!
//! A pod's creator decides how large its object is: up to some 9 MiB of JSON. Only some plain fields of a pod
//! and its addresses are read, so everything deeper is dropped before it takes memory. The rest is bounded by the
//! number of fields that Kubernetes has. Of annotations, only those are kept that are read: 256 KiB of them take six
//! times as many bytes if the API server escapes each character.

/// Maximum bytes of a string that is kept. Names have at most 253, and messages about missing permissions some hundred.
const MAX_STRING: usize = 4096;

/// Replaces a longer annotation of an account. It is not empty, which would count as absent, and not a valid value of
/// any annotation: not an e-mail, a project or a list in JSON.
const TOO_LONG: &[u8] = b"[longer than 4096 bytes]";

/// The field whose entries are kept or dropped one by one.
const ANNOTATIONS: &[u8] = b"annotations";

/// The kind of document that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{"type": ..., "object": {"metadata": {...}}}`
    Event,
    /// `{"items": [{"metadata": {...}}]}`
    List,
    /// `{"metadata": {...}}`
    Account,
    /// `{"metadata": {...}, "spec": {...}}`
    Node,
    /// A list of pods of which only the owners matter.
    Owners,
}

impl Shape {
    /// Maximum bytes that are kept: far more than all fields that are read take.
    pub(super) fn max(self) -> usize {
        match self {
            Self::Event => 1 << 20,
            // Some thousand pods. A node has some hundred.
            Self::List => 4 << 20,
            // Its annotations take a few KiB.
            Self::Account => 128 << 10,
            // Its taints and labels have some thousand bytes.
            Self::Node => 512 << 10,
            // A pod of a `DaemonSet` has one owner, in some 200 bytes.
            Self::Owners => 64 << 10,
        }
    }

    /// The number of containers around a field of `metadata`, `spec` or `status`.
    fn depth_of_fields(self) -> usize {
        match self {
            Self::Event => 3,
            Self::List | Self::Owners => 4,
            Self::Account | Self::Node => 2,
        }
    }

    /// The replacement for a string that is too long.
    fn replacement(self) -> &'static [u8] {
        match self {
            Self::Account => TOO_LONG,
            Self::Event | Self::List | Self::Node | Self::Owners => b"",
        }
    }

    /// Whether an object or array in this field is kept.
    fn keeps(self, field: &[u8]) -> bool {
        match self {
            Self::Event => field == b"podIPs" || field == ANNOTATIONS,
            Self::List => field == b"podIPs",
            Self::Account => field == ANNOTATIONS,
            Self::Node => matches!(field, b"taints" | b"labels"),
            Self::Owners => field == b"ownerReferences",
        }
    }

    /// Whether an annotation is kept. All others may be many, and are a tenant's choice.
    fn keeps_annotation(self, key: &[u8]) -> bool {
        match self {
            // It marks the list at the beginning as complete.
            Self::Event => key == b"k8s.io/initial-events-end",
            // They name the account's Google identity.
            Self::Account => key.starts_with(b"iam.gke.io/"),
            Self::List | Self::Node | Self::Owners => false,
        }
    }
}

/// The place of a byte, relative to strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    InString,
    /// After a backslash.
    Escaped,
}

/// Drops unneeded JSON. Valid JSON stays valid; errors are found by the parser behind it.
#[derive(Debug)]
pub(super) struct Pruner {
    shape: Shape,
    kept: Vec<u8>,
    place: Place,
    /// Open objects and arrays.
    depth: usize,
    /// The depth outside of the value that is being dropped.
    dropped_at: Option<usize>,
    /// Beginning of the last string in `kept`, after its quotation mark.
    string: usize,
    is_too_long: bool,
    /// The last string before a colon is a field whose object or array is kept.
    keeps_next: bool,
    /// The last field before a container is `annotations`.
    is_annotations: bool,
    /// Beginning of an annotation that is not kept, in `kept`.
    unneeded: Option<usize>,
}

impl Pruner {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            shape,
            kept: Vec::new(),
            place: Place::Outside,
            depth: 0,
            dropped_at: None,
            string: 0,
            is_too_long: false,
            keeps_next: false,
            is_annotations: false,
            unneeded: None,
        }
    }

    /// The bytes kept so far.
    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Starts a new document in the memory of the last one.
    pub(super) fn clear(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        *self = Self { kept, ..Self::new(self.shape) };
    }

    /// Reads bytes up to and including the line end that ends a document. Returns their number, and whether it ended.
    pub(super) fn read_line(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, &byte) in bytes.iter().enumerate() {
            if byte == b'\n' && self.place == Place::Outside && self.depth == 0 {
                return (at + 1, true);
            }
            self.read(byte);
        }
        (bytes.len(), false)
    }

    fn read(&mut self, byte: u8) {
        match self.place {
            Place::Outside => self.read_outside(byte),
            Place::Escaped => {
                self.place = Place::InString;
                self.keep_in_string(byte);
            }
            Place::InString if byte == b'"' => {
                self.place = Place::Outside;
                self.keep(byte);
            }
            Place::InString => {
                if byte == b'\\' {
                    self.place = Place::Escaped;
                }
                self.keep_in_string(byte);
            }
        }
    }

    fn read_outside(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.place = Place::InString;
                self.is_too_long = false;
                self.keep(byte);
                self.string = self.kept.len();
            }
            b':' => {
                if self.dropped_at.is_none() {
                    self.read_field();
                }
                self.keep(byte);
            }
            b',' if self.drops_annotation() => {}
            b'{' | b'[' => {
                let is_needed = self.depth != self.shape.depth_of_fields() || self.keeps_next;
                if self.dropped_at.is_none() && !is_needed {
                    self.kept.extend_from_slice(b"null");
                    self.dropped_at = Some(self.depth);
                }
                self.keep(byte);
                self.depth += 1;
            }
            b'}' | b']' => {
                if self.drops_annotation() {
                    // A comma before it would end the object.
                    let kept = self.kept.trim_ascii_end();
                    self.kept.truncate(kept.strip_suffix(b",").unwrap_or(kept).len());
                }
                self.keep(byte);
                self.depth = self.depth.saturating_sub(1);
                if self.dropped_at == Some(self.depth) {
                    self.dropped_at = None;
                }
            }
            _ => self.keep(byte),
        }
    }

    /// Decides what is kept of the value behind this colon.
    fn read_field(&mut self) {
        let field = self.kept.get(self.string..self.kept.len().saturating_sub(1)).unwrap_or_default();
        self.keeps_next = self.shape.keeps(field);
        let fields = self.shape.depth_of_fields();
        if self.depth == fields {
            self.is_annotations = field == ANNOTATIONS;
        } else if self.depth == fields + 1 && self.is_annotations && !self.shape.keeps_annotation(field) {
            self.unneeded = Some(self.string.saturating_sub(1));
        }
    }

    /// Drops the annotation that ends here, if it is not kept. Returns whether it did.
    fn drops_annotation(&mut self) -> bool {
        if self.depth != self.shape.depth_of_fields() + 1 {
            return false;
        }
        let unneeded = self.unneeded.take();
        unneeded.inspect(|&begins| self.kept.truncate(begins)).is_some()
    }

    fn keep(&mut self, byte: u8) {
        if self.dropped_at.is_none() {
            self.kept.push(byte);
        }
    }

    fn keep_in_string(&mut self, byte: u8) {
        if self.is_too_long || self.dropped_at.is_some() {
            return;
        }
        self.kept.push(byte);
        if self.kept.len() - self.string > MAX_STRING {
            self.kept.truncate(self.string);
            self.kept.extend_from_slice(self.shape.replacement());
            self.is_too_long = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pruned(shape: Shape, text: &str) -> String {
        let mut pruner = Pruner::new(shape);
        assert_eq!(pruner.read_line(text.as_bytes()), (text.len(), false));
        String::from_utf8(pruner.kept().to_vec()).expect("UTF-8")
    }

    #[test]
    fn fields_and_addresses_are_kept_and_all_below_is_dropped() {
        let pod = json!({
            "metadata": {
                "uid": "1", "labels": {"podIPs": ["a"]}, "managedFields": [{"a": [1]}],
                "annotations": {"a]": "\"{", "k8s.io/initial-events-end": "true", "z": [{"b": 1}, 2]},
            },
            "spec": {"containers": [{"env": [{"name": "}"}]}], "nodeName": "n", "hostNetwork": true, "volumes": null},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.8.0.5"}], "conditions": [[]]},
        });
        let mut expected = pod.clone();
        for (part, field) in
            [("metadata", "labels"), ("metadata", "managedFields"), ("spec", "containers"), ("status", "conditions")]
        {
            expected[part][field] = Value::Null;
        }
        expected["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        let event = json!({"type": "ADDED", "object": pod});
        let kept: Value = serde_json::from_str(&pruned(Shape::Event, &event.to_string())).expect("JSON");
        assert_eq!(kept, json!({"type": "ADDED", "object": expected}));

        expected["metadata"]["annotations"] = Value::Null;
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": [pod, pod]});
        let kept: Value = serde_json::from_str(&pruned(Shape::List, &list.to_string())).expect("JSON");
        assert_eq!(kept, json!({"metadata": {"resourceVersion": "7"}, "items": [expected, expected]}));
    }

    #[test]
    fn long_strings_and_large_parts_take_no_memory() {
        let long = "\\u0001".repeat(1 << 20);
        let text = format!(r#"{{"object":{{"spec":{{"a":"{long}","args":["{long}"],"nodeName":"n"}}}}}}"#);
        assert_eq!(pruned(Shape::Event, &text), r#"{"object":{"spec":{"a":"","args":null,"nodeName":"n"}}}"#);
        let mut pruner = Pruner::new(Shape::Event);
        pruner.read_line(text.as_bytes());
        assert!(pruner.kept.capacity() <= 4 * MAX_STRING, "{} bytes", pruner.kept.capacity());
    }

    #[test]
    fn a_long_annotation_of_an_account_is_not_an_absent_one() {
        for long in ["a".repeat(4097), "\\u0061".repeat(40_000)] {
            let text = format!(r#"{{"metadata":{{"annotations":{{"iam.gke.io/a":"{long}","iam.gke.io/b":"kept"}}}}}}"#);
            let kept: Value = serde_json::from_str(&pruned(Shape::Account, &text)).expect("JSON");
            let annotations = json!({"iam.gke.io/a": "[longer than 4096 bytes]", "iam.gke.io/b": "kept"});
            assert_eq!(kept, json!({"metadata": {"annotations": annotations}}));
        }
        let longest = "a".repeat(4096);
        let text = format!(r#"{{"metadata":{{"annotations":{{"iam.gke.io/a":"{longest}"}}}}}}"#);
        assert_eq!(pruned(Shape::Account, &text), text);
    }

    #[test]
    fn a_document_ends_with_its_line() {
        let mut pruner = Pruner::new(Shape::Event);
        assert_eq!(pruner.read_line(b"{\"a\":\"\\n\"\n}\n{}"), (12, true));
        assert_eq!(pruner.kept(), b"{\"a\":\"\\n\"\n}");
        pruner.clear();
        assert_eq!((pruner.read_line(b"{}"), pruner.kept()), ((2, false), b"{}".as_slice()));
    }

    /// Values of `metadata`, `spec` or `status`.
    fn any_fields() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        let key = || {
            const KNOWN: &[&str] = &["podIPs", "annotations", "k8s.io/initial-events-end"];
            prop_oneof![prop::sample::select(KNOWN).prop_map(str::to_owned), "[a-z\"\\\\{]{0,3}"]
        };
        let object = |fields: BTreeMap<String, Value>| Value::Object(fields.into_iter().collect());
        let any = leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key(), inner, 0..4).prop_map(object),
            ]
        });
        prop::collection::btree_map(key(), any, 0..6).prop_map(object)
    }

    /// The part of a value that is to be kept at this depth, in this field.
    fn expected(shape: Shape, value: &Value, depth: usize, field: &str) -> Value {
        let is_dropped = depth == shape.depth_of_fields() && !shape.keeps(field.as_bytes());
        match value {
            Value::Array(_) | Value::Object(_) if is_dropped => Value::Null,
            Value::Array(items) => items.iter().map(|item| expected(shape, item, depth + 1, "")).collect(),
            Value::Object(fields) => {
                let is_annotations = depth == shape.depth_of_fields() && field == "annotations";
                let kept = fields.iter().filter(|(key, _)| !is_annotations || shape.keeps_annotation(key.as_bytes()));
                kept.map(|(key, item)| (key.clone(), expected(shape, item, depth + 1, key))).collect()
            }
            plain => plain.clone(),
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_json_with_the_same_values(fields in any_fields(), is_list: bool, pieces in 1_usize..9) {
            let (shape, value) = if is_list {
                (Shape::List, json!({"items": [{"spec": fields}, {"status": fields}]}))
            } else {
                (Shape::Event, json!({"object": {"metadata": fields, "status": fields}}))
            };
            let mut pruner = Pruner::new(shape);
            for piece in value.to_string().as_bytes().chunks(pieces) {
                pruner.read_line(piece);
            }
            let kept: Value = serde_json::from_slice(pruner.kept()).expect("JSON");
            prop_assert_eq!(kept, expected(shape, &value, 0, ""));
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            Pruner::new(Shape::List).read_line(&bytes);
        }
    }
}
