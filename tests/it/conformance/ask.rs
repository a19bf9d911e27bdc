//! Requests, line by line.

/// Host name of a row's requests by default.
pub const HOST: &str = "metadata.google.internal";

const V1: &str = "/computeMetadata/v1";
const ACCOUNT: &str = "/computeMetadata/v1/instance/service-accounts/default";

/// A request that is well-formed except where a row changes it.
#[derive(Debug, Clone)]
pub struct Ask {
    method: &'static str,
    target: String,
    version: &'static str,
    host: Option<&'static str>,
    has_flavor: bool,
    closes: bool,
    lines: Vec<&'static str>,
    body: &'static str,
}

/// A GET of a target with the table's abbreviations.
pub fn get(target: &str) -> Ask {
    ask("GET", target)
}

/// A request with any method, for a target with the table's abbreviations.
pub fn ask(method: &'static str, target: &str) -> Ask {
    Ask {
        method,
        target: full(target),
        version: "HTTP/1.1",
        host: Some(HOST),
        has_flavor: true,
        closes: true,
        lines: Vec::new(),
        body: "",
    }
}

/// Expands the table's abbreviations: `v1` is the tree, `SA` the default account.
pub fn full(target: &str) -> String {
    let abbreviated = |short: &str, long: &str| {
        let rest = target.strip_prefix(short)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{long}{rest}"))
    };
    abbreviated("v1", V1).or_else(|| abbreviated("SA", ACCOUNT)).unwrap_or_else(|| target.to_owned())
}

impl Ask {
    /// Without `Metadata-Flavor: Google`.
    pub fn bare(self) -> Self {
        Self { has_flavor: false, ..self }
    }

    /// With another host name.
    pub fn host(self, host: &'static str) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Without `Host`.
    pub fn without_host(self) -> Self {
        Self { host: None, ..self }
    }

    /// In HTTP/1.0, where the connection closes after the response by default.
    pub fn http10(self) -> Self {
        Self { version: "HTTP/1.0", closes: false, ..self }
    }

    /// Without `Connection: close`.
    pub fn kept(self) -> Self {
        Self { closes: false, ..self }
    }

    /// With one more header line.
    pub fn line(mut self, line: &'static str) -> Self {
        self.lines.push(line);
        self
    }

    /// With a body and its length.
    pub fn body(self, body: &'static str) -> Self {
        Self { body, ..self }
    }

    /// Whether the answer has no body, whatever its length header says.
    pub fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The request line, for reports.
    pub fn title(&self) -> String {
        format!("{} {} {}", self.method, self.target, self.version)
    }

    /// The bytes as sent.
    pub fn bytes(&self) -> Vec<u8> {
        let mut lines = vec![self.title()];
        lines.extend(self.host.map(|host| format!("Host: {host}")));
        lines.extend(self.has_flavor.then(|| "Metadata-Flavor: Google".to_owned()));
        lines.extend(self.lines.iter().map(|line| (*line).to_owned()));
        lines.extend(self.closes.then(|| "Connection: close".to_owned()));
        lines.extend((!self.body.is_empty()).then(|| format!("Content-Length: {}", self.body.len())));
        format!("{}\r\n\r\n{}", lines.join("\r\n"), self.body).into_bytes()
    }
}
