//! What needs connections: TLS, keep-alive, cuts.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::google::Authority;

async fn connect(google: &Handle, name: &str, authority: Authority) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM");
    roots.add(certificate).expect("a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider's versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(google.state.addr).await.expect("it accepts");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn client(google: &Handle) -> SendRequest<Full<Bytes>> {
    let stream = connect(google, "localhost", Authority::USUAL).await.expect("TLS");
    let (client, connection) = handshake(TokioIo::new(stream)).await.expect("no bytes are sent yet");
    tokio::spawn(connection);
    client
}

async fn send(client: &mut SendRequest<Full<Bytes>>, body: &Value) -> Result<Reply, hyper::Error> {
    client.ready().await?;
    let request =
        Request::post("/v1/token").header("Host", "sts.googleapis.com").header(CONTENT_TYPE, "application/json");
    let request = request.body(Full::from(body.to_string())).expect("a request");
    let (parts, body) = client.send_request(request).await?.into_parts();
    Ok(Reply::new(Response::from_parts(parts, body.collect().await?.to_bytes())))
}

#[tokio::test]
async fn tls_is_trusted_by_its_own_authority_only() {
    let world = World::new().await;
    let google = &world.google;
    assert_eq!(google.url(), format!("https://127.0.0.1:{}", google.state.addr.port()));
    for name in ["localhost", "127.0.0.1", "::1"] {
        let stream = connect(google, name, Authority::USUAL).await;
        let stream = stream.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    assert!(connect(google, "example.com", Authority::USUAL).await.is_err(), "another name");
    assert!(connect(google, "localhost", Authority::ANOTHER).await.is_err(), "another authority");
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let world = World::new().await;
    let mut client = client(&world.google).await;
    for _ in 0..3 {
        let reply = send(&mut client, &exchange(&world.ksa_token(&checkout()))).await.expect("an answer");
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    assert_eq!(world.google.count_of(Endpoint::Sts, &checkout()), 3);
    let large = json!({ "x": "y".repeat(70_000) });
    assert_eq!(send(&mut client, &large).await.expect("an answer").status, 413);
}

#[tokio::test]
async fn a_google_that_is_away_comes_back_with_what_it_knew() {
    let world = World::new().await;
    let body = exchange(&world.ksa_token(&checkout()));
    let mut before = client(&world.google).await;
    let reply = send(&mut before, &body).await.expect("an answer");
    let token = reply.body["access_token"].as_str().expect("a token").to_owned();
    world.google.set_away(true);
    assert!(send(&mut before, &body).await.is_err());
    assert!(connect(&world.google, "localhost", Authority::USUAL).await.is_err());
    world.google.set_away(false);
    let mut after = client(&world.google).await;
    assert_eq!(send(&mut after, &body).await.expect("an answer").status, 200);
    assert!(world.google.subject_of(&token).is_some());
    world.google.fault(Endpoint::Sts, Fault::Hang);
    let (reply, ()) = tokio::join!(send(&mut after, &body), async {
        while world.google.count(Endpoint::Sts) < 3 {
            tokio::task::yield_now().await;
        }
        world.google.set_away(true);
    });
    assert!(reply.is_err());
}

#[tokio::test]
async fn it_stops_with_its_connections() {
    let world = World::new().await;
    let open = connect(&world.google, "localhost", Authority::USUAL).await.expect("TLS");
    tokio::time::timeout(Duration::from_secs(10), world.google.stop()).await.expect("it stops");
    assert!(TcpStream::connect(world.google.state.addr).await.is_err());
    drop(open);
}
