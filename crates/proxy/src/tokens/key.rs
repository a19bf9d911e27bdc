//! [`TokenKey`]: identifies a token.

use protocol::metadata::query::Param;
use protocol::metadata::token::TokenFormat;
use protocol::metadata::{Endpoint, Fingerprint, Principal, Query, Request, ServiceAccount};
use telemetry::labels;

/// The complete identity of a token. Two requests share a token only if all fields are equal. Keys are
/// compared in full, never by a hash alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenKey {
    /// The caller.
    pub principal: Principal,
    pub account: ServiceAccount,
    pub kind: TokenKind,
    /// The certificate that it is bound to. Only a token requested by POST has one, and it has one in any case.
    pub bound_to: Option<Box<Fingerprint>>,
    /// All parameters that change the token, normalised and in a fixed order.
    params: Box<[(Param, Box<str>)]>,
}

labels! {
    /// Kinds of token.
    #[derive(Hash)]
    TokenKind {
        /// An access token, for Google's APIs.
        Access = "access",
        /// An identity token, which proves the holder's identity to the audience.
        Identity = "identity",
    }
}

impl TokenKey {
    /// The instance's own account, without any parameter.
    pub fn default_account() -> Self {
        Self {
            principal: Principal::Node,
            account: ServiceAccount::Default,
            kind: TokenKind::Access,
            bound_to: None,
            params: Box::default(),
        }
    }

    /// Whether this is [`TokenKey::default_account`].
    pub fn is_default_account(&self) -> bool {
        *self == Self::default_account()
    }

    /// Parses a token request, and the requested form. Returns `None` for any other request, and for one of the node that the
    /// server refuses: one that waits for a change, or has a wrong `alt`. So each token of Google's server is one of the cache, and
    /// in the audit's log.
    pub fn from_request(request: &Request) -> Option<(Self, TokenFormat)> {
        let (account, kind) = match &request.endpoint {
            Endpoint::Token(account) => (account, TokenKind::Access),
            Endpoint::Identity(account) => (account, TokenKind::Identity),
            _ => return None,
        };
        if request.query.waits_for_change() && !matches!(request.principal, Principal::Workload(_)) {
            return None;
        }
        let form = form_of(request.principal, &request.query, kind)?;
        let mut params = Vec::new();
        for (param, value) in request.query.params() {
            match part(request.principal, kind, param) {
                Part::None => {}
                Part::Set => params.push((param, canonical_scopes(value).into())),
                Part::Text => params.push((param, value.into())),
            }
        }
        let (principal, account) = (request.principal, account.clone());
        let bound_to = request.bound_to.as_ref().map(|bound_to| Box::new(bound_to.fingerprint.clone()));
        Some((Self { principal, account, kind, bound_to, params: params.into() }, form))
    }

    /// The value of a parameter that changes the token.
    pub fn param(&self, param: Param) -> Option<&str> {
        self.params.iter().find(|(known, _)| *known == param).map(|(_, value)| &**value)
    }

    /// The parameters that change the token, with their values.
    pub fn params(&self) -> impl Iterator<Item = (Param, &str)> {
        self.params.iter().map(|(param, value)| (*param, &**value))
    }

    /// Heap memory, in bytes.
    pub fn heap(&self) -> usize {
        let account = match &self.account {
            ServiceAccount::Default => 0,
            ServiceAccount::Email(email) => email.len(),
        };
        let params: usize = self.params.iter().map(|(_, value)| value.len()).sum();
        let bound_to = self.bound_to.as_deref().map_or(0, size_of_val);
        account + params + bound_to + size_of_val(&*self.params)
    }

    /// The metadata server request for this token, which is bound to nothing.
    pub fn request(&self) -> Request {
        let account = &self.account;
        let (leaf, endpoint) = match self.kind {
            TokenKind::Access => ("token", Endpoint::Token(account.clone())),
            TokenKind::Identity => ("identity", Endpoint::Identity(account.clone())),
        };
        let path = format!("/computeMetadata/v1/instance/service-accounts/{account}/{leaf}");
        Request::own(endpoint, &path, Query::from_params(self.params.iter().cloned()), self.principal)
    }
}

/// The effect of a parameter on a token.
enum Part {
    /// No effect: it is read elsewhere, or the server ignores it (Google's "View and query VM metadata").
    None,
    /// It changes the token.
    Text,
    /// It changes the token, and is a set.
    Set,
}

fn part(principal: Principal, kind: TokenKind, param: Param) -> Part {
    match (kind, param) {
        (TokenKind::Access, Param::Scopes) => Part::Set,
        // Only identity tokens have an audience. object_store (Rust) sends the address of Google's token endpoint.
        (TokenKind::Identity, Param::Audience) => Part::Text,
        (TokenKind::Identity, Param::Format | Param::Licenses)
        | (
            _,
            Param::BindingEnforcement | Param::BindCertificateFingerprint | Param::EnforceScopes | Param::Transport,
        ) => {
            match principal {
                Principal::Node | Principal::Unknown => Part::Text,
                // Neither STS nor IAM gets them. In the key they would only repeat the same exchange.
                Principal::Workload(_) => Part::None,
            }
        }
        _ => Part::None,
    }
}

/// JSON unless `alt=text`; identity tokens have one form. Other values of `alt` are refused by the server.
fn form_of(principal: Principal, query: &Query, kind: TokenKind) -> Option<TokenFormat> {
    match (query.value(Param::Alt), kind, principal) {
        (Some("text"), TokenKind::Access, _) => Some(TokenFormat::Text),
        (None | Some("json" | "text"), ..) | (Some(_), TokenKind::Identity, Principal::Workload(_)) => {
            Some(TokenFormat::Json)
        }
        _ => None,
    }
}

/// Scopes are a set: order, repetitions and surrounding spaces do not change the token.
fn canonical_scopes(scopes: &str) -> String {
    let mut scopes: Vec<&str> = scopes.split([',', ' ']).filter(|scope| !scope.is_empty()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    scopes.join(",")
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use protocol::metadata::{MetadataPath, WorkloadId};

    fn read(target: &str) -> Option<(TokenKey, TokenFormat)> {
        read_of(Principal::Node, target)
    }

    fn read_of(principal: Principal, target: &str) -> Option<(TokenKey, TokenFormat)> {
        let target = target.parse().expect("a target");
        let path = MetadataPath::parse(&target).expect("a path");
        let query = Query::parse(target.query()).expect("a query");
        TokenKey::from_request(&Request::own(Endpoint::from_path(&path), path.as_str(), query, principal))
    }

    fn token(query: &str) -> Option<(TokenKey, TokenFormat)> {
        read(&format!("/computeMetadata/v1/instance/service-accounts/default/token{query}"))
    }

    fn key(query: &str) -> TokenKey {
        token(query).expect("a token").0
    }

    #[test]
    fn spelling_does_not_split_a_key() {
        assert_eq!(key("?scopes=b,a"), key("?scopes=a%2Cb"));
        assert_eq!(key("?scopes=a,b,a"), key("?scopes=+a+,b,"));
        assert_eq!(key("?transport=mtls&scopes=a"), key("?scopes=a&transport=mtls"));
        assert_eq!(key("?recursive=true"), key(""));
        assert_eq!(key("?alt=text"), key("?alt=json"));
    }

    #[test]
    fn every_parameter_that_changes_a_token_is_in_the_key() {
        let queries = [
            "",
            "?scopes=a",
            "?scopes=a,b",
            "?transport=mtls",
            "?transport=alts",
            "?binding-enforcement=on",
            "?enforce_scopes=true",
            "?bindCertificateFingerprint=x",
        ];
        for (at, query) in queries.iter().enumerate() {
            for other in &queries[..at] {
                assert_ne!(key(query), key(other), "{query} and {other}");
            }
        }
    }

    #[test]
    fn parameters_that_only_the_metadata_server_knows_do_not_split_a_workloads_key() {
        let key = |query: &str| {
            let target = format!("/computeMetadata/v1/instance/service-accounts/default/token{query}");
            read_of(Principal::Workload(WorkloadId(1)), &target).expect("a token").0
        };
        for param in ["transport", "binding-enforcement", "enforce_scopes", "bindCertificateFingerprint"] {
            assert_eq!(key(&format!("?{param}=x")), key(""), "{param}");
            assert_eq!(key(&format!("?{param}=x&scopes=a")), key("?scopes=a"), "{param}");
        }
        assert_ne!(key("?scopes=a"), key(""));
    }

    /// A token that the cache does not know would not be in the audit's log.
    #[test]
    fn no_parameter_passes_a_token_by_the_cache() {
        let changes = [
            Param::Scopes,
            Param::BindingEnforcement,
            Param::BindCertificateFingerprint,
            Param::EnforceScopes,
            Param::Transport,
        ];
        for param in Param::ALL.iter().filter(|param| !matches!(param, Param::Alt | Param::WaitForChange)) {
            assert_eq!(
                token(&format!("?{}=1", param.key())).map(|(key, _)| key == self::key("")),
                Some(!changes.contains(param))
            );
        }
        assert_eq!(key("?wait_for_change=false&timeout_sec=5&last_etag=x&scopes=a"), key("?scopes=a"));
        let identity = |query: &str| {
            read(&format!("/computeMetadata/v1/instance/service-accounts/default/identity?audience=a{query}"))
        };
        for query in ["&alt=json", "&alt=text", "&email=a", "&wait_for_change=false"] {
            assert_eq!(identity(query), identity(""), "{query}");
        }
    }

    /// The request would not be of any use to another server, and the node's is not asked for a workload.
    #[test]
    fn no_parameter_keeps_a_workloads_request_from_being_one_for_a_token() {
        let key = |leaf: &str, query: &str| {
            let target = format!("/computeMetadata/v1/instance/service-accounts/default/{leaf}?{query}");
            read_of(Principal::Workload(WorkloadId(1)), &target).map(|(key, _)| key)
        };
        for param in Param::ALL.iter().filter(|param| !matches!(param, Param::Alt | Param::Scopes)) {
            assert_eq!(key("token", &format!("{}=1", param.key())), key("token", ""), "{param:?}");
        }
        for query in [
            "audience=a&scopes=s",
            "audience=a&alt=json",
            "audience=a&alt=text",
            "audience=a&timeout_sec=1",
            "audience=a&format=full&licenses=TRUE",
        ] {
            assert_eq!(key("identity", query), key("identity", "audience=a"), "{query}");
        }
    }

    #[test]
    fn an_audience_does_not_change_an_access_token() {
        let object_store = "?audience=https%3A%2F%2Fwww.googleapis.com%2Foauth2%2Fv4%2Ftoken";
        assert!(key(object_store).is_default_account());
        assert_eq!(key("?audience=x&scopes=a"), key("?scopes=a"));
        assert_eq!(key(object_store).request().query.to_string(), "", "it is not sent either");
    }

    #[test]
    fn requests_that_the_server_refuses_are_left_to_it() {
        for query in ["?wait_for_change=true", "?alt=xml"] {
            assert_eq!(token(query), None, "{query}");
        }
        assert_eq!(read("/computeMetadata/v1/instance/id"), None);
        assert_eq!(read("/computeMetadata/v1/instance/service-accounts/default/token/"), None);
    }

    #[test]
    fn identity_tokens_differ_by_audience_format_and_licences() {
        let identity =
            |query: &str| read(&format!("/computeMetadata/v1/instance/service-accounts/default/identity{query}"));
        assert_ne!(identity("?audience=a"), identity("?audience=b"));
        assert_ne!(identity("?audience=a"), identity("?audience=a&format=full"));
        assert_eq!(identity("?audience=https://a"), identity("?audience=https%3A%2F%2Fa"));
        assert_eq!(identity("?audience=a&scopes=x"), identity("?audience=a"));
        assert_ne!(identity("?audience=a").map(|(key, _)| key), token("?audience=a").map(|(key, _)| key));
    }

    #[test]
    fn the_request_of_a_key_has_its_parameters() {
        let request = key("?transport=mtls&scopes=b,a").request();
        assert_eq!(
            format!("{}{}", request.path, request.query),
            "/computeMetadata/v1/instance/service-accounts/default/token?scopes=a,b&transport=mtls"
        );
    }

    proptest! {
        /// Parsing a key's request gives the same key, so the fetched token is the one that the key identifies.
        #[test]
        fn a_key_and_its_request_agree(
            account in "default|[a-z]{1,4}@[a-z]{1,3}",
            scopes in proptest::option::of("[a-c,+]{0,6}"),
            transport in proptest::option::of("mtls|alts|[a-z%]{0,2}"),
            audience in proptest::option::of("[a-z:/]{0,6}"),
        ) {
            let params = [("scopes", scopes), ("transport", transport.map(|value| value.replace('%', "%25"))), ("audience", audience)];
            let query: Vec<String> = params.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?))).collect();
            let (key, _) = read(&format!("/computeMetadata/v1/instance/service-accounts/{account}/token?{}", query.join("&"))).expect("a token");
            let again = TokenKey::from_request(&key.request()).expect("a token").0;
            prop_assert_eq!(again, key);
        }

        /// So the request is within the limit on targets, like every request that was parsed.
        #[test]
        fn the_request_of_a_key_is_not_longer_than_what_it_was_read_from(
            param in select(vec!["audience", "scopes", "transport"]),
            text in "([a-z/:,@*?=+|{}\"'()^`~]|%[2-7][0-9a-f]|\u{e9}|\u{1f600}){1,40}",
        ) {
            let target = format!("/computeMetadata/v1/instance/service-accounts/default/token?{param}={text}");
            let parsed: Result<PathAndQuery, _> = target.parse();
            if let Ok(query) = parsed.map_err(drop).and_then(|parsed| Query::parse(parsed.query()).map_err(drop))
                && let Some((key, _)) = read(&target)
            {
                let (sent, asked) = (query.to_string(), key.request().query.to_string());
                prop_assert!(asked.len() <= sent.len(), "{asked} of {sent}");
            }
        }
    }
}
