//! The process: read the command line, start, run, exit.

use std::io::{self, Write};
use std::process::ExitCode;

use gce_metadata_proxy::app::App;
use gce_metadata_proxy::cli::{self, Command, Stop};
use gce_metadata_proxy::config::Config;
use gce_metadata_proxy::server::drain;
use gce_metadata_proxy::telemetry::logging;
use gce_metadata_proxy::threads;
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(Stop::Shown(text)) => {
            // A reader that has seen enough (`--help | head`) is no failure.
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(Stop::Usage(text)) => {
            eprint!("{text}");
            return ExitCode::from(cli::USAGE);
        }
    };
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gce-metadata-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn run(command: Command) -> Outcome {
    match command {
        Command::Ask(question) => print(&question.answer()?),
        Command::Serve(config) => runtime(threads::count())?.block_on(serve(config)),
        #[cfg(feature = "mock")]
        Command::Mock(addr) => {
            runtime(threads::count())?.block_on(async { gce_metadata_proxy::demo::mock(addr, drain::signals()?).await })
        }
        #[cfg(feature = "mock")]
        Command::Demo(config) => runtime(threads::count())?
            .block_on(async { gce_metadata_proxy::demo::run(config, drain::signals()?).await }),
    }
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Outcome {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn runtime(threads: usize) -> io::Result<Runtime> {
    match threads {
        1 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

async fn serve(config: Config) -> Outcome {
    let stop = drain::signals()?;
    logging::start(config.log_format, &config.log);
    App::bind(config)?.run(stop).await;
    Ok(())
}
