//! The contenders: the proxy, and servers that could replace it or that set a lower bound.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cgroup::Cgroup;
use super::clients;
use super::process::{self, Missing, Process, free_addr, target};

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// The binary of the container image.
    Proxy,
    /// A bare hyper server.
    Hyper,
    Nginx(Role),
    Haproxy(Role),
    Envoy(Role),
    /// The mock metadata server without a proxy.
    Upstream,
}

/// How another server handles requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Responds itself with the proxy's response.
    Returns,
    /// Forwards requests over kept-alive connections.
    Passes,
    /// Forwards the first request and caches its response. Concurrent requests wait for it.
    Caches,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proxy => "gce-metadata-proxy",
            Self::Hyper => "bare hyper",
            Self::Nginx(Role::Returns) => "nginx `return 200`",
            Self::Nginx(Role::Passes) => "nginx `proxy_pass`",
            Self::Nginx(Role::Caches) => "nginx `proxy_cache`, lock",
            Self::Haproxy(Role::Returns) => "HAProxy `return`",
            Self::Haproxy(_) => "HAProxy",
            Self::Envoy(Role::Returns) => "Envoy `direct_response`",
            Self::Envoy(_) => "Envoy",
            Self::Upstream => "the upstream, directly",
        })
    }
}

/// The environment in which a server is started.
#[derive(Debug)]
pub struct World<'a> {
    pub binary: &'a Path,
    pub upstream: SocketAddr,
    /// The target to be requested, and the upstream's response to it.
    pub target: &'a str,
    pub answer: &'a [u8],
    pub proxy_args: &'a [String],
    /// Folder for configurations and logs.
    pub dir: &'a Path,
}

/// A running server. Its process is killed on drop.
#[derive(Debug)]
pub struct Server {
    pub process: Option<Process>,
    pub program: Option<PathBuf>,
    pub addr: SocketAddr,
    /// Address of the proxy's readiness page.
    admin: Option<SocketAddr>,
}

/// Why a contender cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Server {
    /// Starts a server. It may not respond yet.
    pub fn start(contender: Contender, world: &World<'_>, group: Option<&Cgroup>) -> Result<Self, StartError> {
        if contender == Contender::Upstream {
            return Ok(Self { process: None, program: None, addr: world.upstream, admin: None });
        }
        let (addr, admin) = (free_addr()?, free_addr()?);
        let (program, args) = match contender {
            Contender::Proxy => (world.binary.to_owned(), proxy(addr, admin, world)),
            Contender::Hyper => (std::env::current_exe()?, hyper(addr, world)?),
            Contender::Nginx(role) => (process::find("nginx")?, nginx(addr, role, world)?),
            Contender::Haproxy(role) => (process::find("haproxy")?, haproxy(addr, role, world)?),
            Contender::Envoy(role) => (process::find("envoy")?, envoy(addr, role, world)?),
            Contender::Upstream => unreachable!("it runs already"),
        };
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let process = Process::start(&program, &args, group, &world.dir.join(format!("{name}.log")))?;
        let admin = (contender == Contender::Proxy).then_some(admin);
        Ok(Self { process: Some(process), program: Some(program), addr, admin })
    }

    /// Waits until it responds, and for the proxy until its caches are warm. Returns the response.
    pub async fn ready(&mut self, world: &World<'_>) -> io::Result<Vec<u8>> {
        let ready = async {
            if let Some(admin) = self.admin {
                clients::answers(admin, "/readyz").await?;
            }
            clients::answers(self.addr, world.target).await
        };
        match ready.await {
            Err(_) if self.process.as_mut().is_some_and(Process::has_ended) => {
                Err(io::Error::other(format!("the server ended at once; its log is in {}", world.dir.display())))
            }
            outcome => outcome,
        }
    }
}

fn proxy(addr: SocketAddr, admin: SocketAddr, world: &World<'_>) -> Vec<String> {
    let upstream = world.upstream;
    let own = [format!("--addr={addr}"), format!("--metrics-addr={admin}"), format!("--upstream=http://{upstream}")];
    own.into_iter().chain(world.proxy_args.iter().cloned()).collect()
}

fn hyper(addr: SocketAddr, world: &World<'_>) -> io::Result<Vec<String>> {
    let body = write(world, "answer", world.answer)?;
    Ok(vec![super::HYPER.to_owned(), addr.to_string(), body])
}

/// One worker, because the proxy has one thread. No log, because the proxy writes none.
fn nginx(addr: SocketAddr, role: Role, world: &World<'_>) -> io::Result<Vec<String>> {
    let (dir, upstream) = (world.dir.display(), world.upstream);
    let pass = "proxy_pass http://upstream; proxy_http_version 1.1; proxy_set_header Connection '';";
    let location = match role {
        Role::Returns => {
            format!("default_type application/json; return 200 '{}';", String::from_utf8_lossy(world.answer))
        }
        Role::Passes => pass.to_owned(),
        Role::Caches => format!(
            "{pass} proxy_cache kept; proxy_cache_lock on; proxy_cache_valid 200 60s; \
             proxy_ignore_headers Cache-Control Expires Vary; open_file_cache max=1000; open_file_cache_valid 60s;"
        ),
    };
    let temporary: Vec<String> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {dir}/nginx-{kind};"))
        .into();
    // Left by an earlier run.
    match fs::remove_dir_all(world.dir.join("nginx-cache")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let config = format!(
        "daemon off; master_process off; worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/nginx-errors.log;\n\
         events {{ worker_connections 10000; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 90s; {}\n\
         proxy_cache_path {dir}/nginx-cache keys_zone=kept:1m;\n\
         upstream upstream {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}\n\
         server {{ listen {addr} backlog=4096; location / {{ {location} }} }} }}\n",
        temporary.join(" ")
    );
    Ok(vec!["-c".to_owned(), write(world, "nginx.conf", config.as_bytes())?])
}

fn haproxy(addr: SocketAddr, role: Role, world: &World<'_>) -> io::Result<Vec<String>> {
    let answer = write(world, "answer", world.answer)?;
    let front = match role {
        Role::Returns => format!("http-request return status 200 content-type application/json file {answer}"),
        Role::Passes | Role::Caches => "default_backend upstream".to_owned(),
    };
    let config = format!(
        "global\n  nbthread 1\n  maxconn 9000\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 90s\n  timeout server 90s\n\
         frontend pods\n  bind {addr} backlog 4096\n  {front}\n\
         backend upstream\n  http-reuse always\n  server mock {}\n",
        world.upstream
    );
    Ok(vec!["-db".to_owned(), "-f".to_owned(), write(world, "haproxy.cfg", config.as_bytes())?])
}

/// Circuit breakers keep their defaults, as in the experiment that is repeated.
fn envoy(addr: SocketAddr, role: Role, world: &World<'_>) -> io::Result<Vec<String>> {
    let socket =
        |addr: SocketAddr| json!({"socket_address": {"address": addr.ip().to_string(), "port_value": addr.port()}});
    let mut route = json!({"match": {"prefix": "/"}});
    match role {
        Role::Returns => {
            route["direct_response"] =
                json!({"status": 200, "body": {"inline_string": String::from_utf8_lossy(world.answer)}});
        }
        Role::Passes | Role::Caches => route["route"] = json!({"cluster": "upstream"}),
    }
    let typed = |of: &str, mut value: Value| {
        value["@type"] = format!("type.googleapis.com/envoy.extensions.filters.{of}").into();
        value
    };
    let router = typed("http.router.v3.Router", json!({}));
    let manager = typed(
        "network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "pods",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        }),
    );
    let filter = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
    let endpoint = json!({"endpoint": {"address": socket(world.upstream)}});
    let config = json!({"static_resources": {
        "listeners": [{"address": socket(addr), "filter_chains": [{"filters": [filter]}]}],
        "clusters": [{
            "name": "upstream",
            "load_assignment": {"cluster_name": "upstream", "endpoints": [{"lb_endpoints": [endpoint]}]},
        }],
    }});
    let config = write(world, "envoy.json", config.to_string().as_bytes())?;
    Ok(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "-c", &config]
        .map(str::to_owned)
        .into())
}

fn write(world: &World<'_>, name: &str, bytes: &[u8]) -> io::Result<String> {
    let file = world.dir.join(name);
    fs::write(&file, bytes)?;
    Ok(file.display().to_string())
}

/// Builds the binary that is in the image: it has another C library than a plain release build, which costs something else.
pub async fn build() -> io::Result<PathBuf> {
    let binary = target().join("load/gce-metadata-proxy");
    let mut build = tokio::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/image/build-binary"));
    build.arg("").arg(&binary).env("CARGO_TARGET_DIR", target());
    if !build.status().await?.success() {
        return Err(io::Error::other("the image's binary cannot be built"));
    }
    Ok(binary)
}
