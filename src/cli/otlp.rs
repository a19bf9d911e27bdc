//! The flags of the feature `otlp`.

use clap::Args;

use super::Reader;
use crate::config;
use crate::metadata::Target;
use crate::telemetry::otlp::Settings;

/// Uses OpenTelemetry's standard environment variables.
#[derive(Debug, Args)]
pub(super) struct OtlpArgs {
    /// OpenTelemetry collector to export traces to, with OTLP over HTTP, such as `http://127.0.0.1:4318`. Only http:// and
    /// no path. Tracing is off if not set
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,

    /// Share of requests without a `traceparent` header to trace, from 0 to 1. Requests with one are traced if it is sampled
    #[arg(long, value_name = "RATIO", env = "OTEL_TRACES_SAMPLER_ARG", default_value = config::OTLP_SAMPLE_RATIO)]
    otlp_sample_ratio: String,
}

const ENDPOINT: &str = "http://HOST:PORT without a path, such as http://127.0.0.1:4318";
const RATIO: &str = "a number from 0 to 1, such as 0.01";

impl OtlpArgs {
    pub(super) fn resolve(&self, read: &mut Reader) -> Option<Settings> {
        let endpoint = self.otlp_endpoint.as_deref().filter(|text| !text.is_empty());
        let collector =
            endpoint.map(|text| read.value("--otlp-endpoint", text, ENDPOINT, |url| Target::parse(url).ok()));
        let sample_ratio = read.value("--otlp-sample-ratio", &self.otlp_sample_ratio, RATIO, ratio);
        // An invalid endpoint is already recorded as a mistake, and the proxy does not start.
        Some(Settings { collector: collector.flatten(), sample_ratio: sample_ratio? })
    }
}

fn ratio(text: &str) -> Option<f64> {
    text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::cli::tests::{mistakes, parse_line};

    #[test]
    fn nothing_is_traced_unless_it_is_asked_for() {
        for (line, flags) in [
            ("", ["", "0.01"]),
            ("--otlp-endpoint=", ["", "0.01"]),
            ("--otlp-endpoint http://localhost:4318/ -otlp-sample-ratio=1", ["http://localhost:4318", "1"]),
        ] {
            let Ok(Command::Serve(config)) = parse_line(line) else { panic!("{line}") };
            assert_eq!(config.otlp.flags().into_iter().map(|(_, value)| value).collect::<Vec<_>>(), flags, "{line}");
            assert_eq!(config.otlp.collector.is_some(), !flags[0].is_empty());
        }
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        for endpoint in ["127.0.0.1:4318", "https://collector:4318", "http://collector:4318/v1/traces", "http://"] {
            let said = mistakes(&format!("--otlp-endpoint {endpoint}"));
            assert!(said.contains(&format!("--otlp-endpoint: {endpoint:?} is not valid; expected http://")), "{said}");
        }
        for ratio in ["2", "-0.1", "NaN", "1%", "inf"] {
            let said = mistakes(&format!("--otlp-sample-ratio={ratio} --addr nowhere"));
            assert!(
                said.contains(&format!("--otlp-sample-ratio: {ratio:?} is not valid; expected a number")),
                "{said}"
            );
            assert!(said.contains("--addr"), "all mistakes at once: {said}");
        }
    }
}
