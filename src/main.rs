//! The process: read the command line, start, run, exit.

use std::process::ExitCode;

use gce_metadata_proxy::app::App;
use gce_metadata_proxy::cli::{self, Command, Stop};
use gce_metadata_proxy::config::Config;
use gce_metadata_proxy::server::drain;
use gce_metadata_proxy::telemetry::logging;

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(Stop::Shown(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Usage(text)) => {
            eprint!("{text}");
            return ExitCode::from(cli::USAGE);
        }
    };
    match start(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gce-metadata-proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn start(command: Command) -> Outcome {
    // One thread: a node's pods do not fill one core, and a second one costs memory and locks.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Serve(config) => serve(config).await,
            #[cfg(feature = "mock")]
            Command::Mock(addr) => gce_metadata_proxy::demo::mock(addr, drain::signals()?).await,
            #[cfg(feature = "mock")]
            Command::Demo(config) => gce_metadata_proxy::demo::run(config, drain::signals()?).await,
        }
    })
}

async fn serve(config: Config) -> Outcome {
    let stop = drain::signals()?;
    logging::start(config.log_format, &config.log);
    App::bind(config)?.run(stop).await;
    Ok(())
}
