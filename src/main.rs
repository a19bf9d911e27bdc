//! Entry point: parses the command line, runs the command and sets the exit code.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use gce_metadata_proxy::app::{App, redirect_metrics};
use gce_metadata_proxy::cli::{self, Command, Stop};
use gce_metadata_proxy::config::Config;
use gce_metadata_proxy::status;
use gce_metadata_proxy::threads;
use operator::check;
use operator::explain::{self, Question};
use operator::pages;
use operator::startup_taint::StartupTaint;
use proxy::server::drain::{Signals, ignore_hangups};
use telemetry::Registry;
use telemetry::logging::{self, Format, Levels};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(Stop::Shown(text)) => return print(&text, ExitCode::SUCCESS),
        Err(Stop::Usage(text)) => {
            eprint!("{text}");
            return ExitCode::from(cli::USAGE_EXIT_CODE);
        }
    };
    match start(command) {
        Ok((text, code)) => print(&text, code),
        Err(error) => {
            logging::exit(&error);
            ExitCode::FAILURE
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Runs the command. Returns the text for standard output, and the exit code.
fn start(command: Command) -> Outcome<(String, ExitCode)> {
    let runtime = runtime(threads::count())?;
    let outcome = runtime.block_on(run(command)).map(|(text, code)| (text, ExitCode::from(code)));
    // What blocks a thread, such as a resolver that hangs, must hold up neither the result nor the exit.
    runtime.shutdown_background();
    outcome
}

async fn run(command: Command) -> Outcome<(String, u8)> {
    let _ignoring =
        if runs_until_stopped(&command) { Some(AbortOnDropHandle::new(tokio::spawn(ignore_hangups()?))) } else { None };
    match command {
        Command::Serve(config) => serve(config).await?,
        Command::Ask { question, proxy } => return ask(&question, proxy).await,
        Command::ExplainPod { admin, pod } => return Ok((explain::pod(admin, &pod).await?, 0)),
        Command::Status { admin, format } => return Ok(show_status(admin, format).await),
        Command::Check { command, admin, log: (format, levels) } => {
            start_log(format, &levels);
            return Ok(check::run(command, admin, first_signal()?).await?);
        }
        Command::IdentityDoctor { admin, settings, whose, format } => {
            let report = operator::doctor::examine(admin, &settings, &whose).await;
            return Ok((operator::finding::render(&report, format), report.exit_code()));
        }
        Command::Redirect { command, metrics_addr, log: (format, levels), startup_taint } => {
            start_log(format, &levels);
            return redirect(command, metrics_addr, startup_taint).await;
        }
        #[cfg(feature = "mock")]
        Command::Mock(addr) => gce_metadata_proxy::demo::mock(addr, first_signal()?).await?,
        #[cfg(feature = "mock")]
        Command::Demo(config, with_traffic) => {
            gce_metadata_proxy::demo::run(config, with_traffic, first_signal()?).await?;
        }
    }
    Ok((String::new(), 0))
}

/// Whether it is a service, which no terminal or log rotation should end.
fn runs_until_stopped(command: &Command) -> bool {
    matches!(
        command,
        Command::Serve(_)
            | Command::Check { command: check::Command::Repeatedly(_), .. }
            | Command::Redirect { command: redirect::Command::Keep(_), .. }
    )
}

/// Starts the log, and warns there of misspelt variables: they may be why the command then does something else than was wanted.
fn start_log(format: Format, levels: &Levels) {
    logging::start(format, levels);
    for unknown in cli::unknown_variables() {
        tracing::warn!("{unknown}");
    }
}

async fn ask(question: &Question, proxy: Option<SocketAddr>) -> Outcome<(String, u8)> {
    let answer = question.answer()?;
    let beside = match proxy {
        Some(admin) => question.beside(admin).await,
        None => None,
    };
    Ok((answer.text + &beside.unwrap_or_default(), u8::from(!answer.is_as_expected)))
}

async fn show_status(admin: SocketAddr, format: Format) -> (String, u8) {
    status::run(admin, format).await.unwrap_or_else(|error| {
        eprintln!("gce-metadata-proxy: {error}");
        (String::new(), status::CANNOT_ASK)
    })
}

async fn redirect(
    command: redirect::Command,
    metrics_addr: Option<SocketAddr>,
    startup_taint: Option<StartupTaint>,
) -> Outcome<(String, u8)> {
    let once_installed = async |redirect: redirect::Redirect| {
        if let Some(taint) = startup_taint {
            taint.keep_away(async || redirect.is_installed().await).await;
        }
    };
    let registry = Registry::of_this_process();
    let serve = |addr| pages::serve_metrics(addr, "--keeper-metrics-addr", registry.clone());
    // In a task of its own: a port that is taken must not keep the rules from being installed.
    let _serving = metrics_addr.map(|addr| AbortOnDropHandle::new(tokio::spawn(serve(addr))));
    let (text, is_as_wanted) =
        redirect::run(command, redirect_metrics(&registry), once_installed, first_signal()?).await?;
    Ok((text, u8::from(!is_as_wanted)))
}

/// Prints to standard output, and returns the exit code. A reader that closes the pipe early (`| head`) is no error. Output
/// that a full disk cut short is one: the first half of a policy is a valid policy that conceals less.
fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            // Standard error may be on the same disk, where `eprintln!` would panic.
            let _ = writeln!(
                io::stderr(),
                "gce-metadata-proxy: cannot write to standard output: {error}; what was written is incomplete"
            );
            ExitCode::from(cli::OUTPUT_EXIT_CODE)
        }
        _ => code,
    }
}

fn runtime(threads: usize) -> io::Result<Runtime> {
    match threads {
        1 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

/// Serves until a signal starts the drain. A second signal ends the drain early.
async fn serve(config: Config) -> Outcome<()> {
    let mut signals = Signals::listen()?;
    start_log(config.log.0, &config.log.1);
    let app = App::prepare(config).await?;
    let (tell, told) = oneshot::channel::<()>();
    let running = app.run(async {
        // The sender lives as long as this future is polled.
        let _ = told.await;
    });
    let urged = async {
        let signal = signals.next().await;
        tracing::info!("received {signal}: draining; a second signal exits immediately");
        let _ = tell.send(());
        signals.next().await
    };
    tokio::select! {
        ended = running => Ok(ended?),
        signal = urged => Err(format!("received {signal} while draining: exited immediately and cut requests in flight").into()),
    }
}

fn first_signal() -> io::Result<impl Future<Output = ()>> {
    let mut signals = Signals::listen()?;
    Ok(async move {
        signals.next().await;
    })
}
