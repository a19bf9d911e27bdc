//! The flags of the feature `otlp`.

use clap::Args;
use serde::Serialize;

use super::given::{Given, Mistakes, Syntax};
use crate::config;
use crate::metadata::Target;
use crate::telemetry::otlp::Settings;

/// Uses OpenTelemetry's standard environment variables.
#[derive(Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct OtlpArgs {
    /// OpenTelemetry collector to export traces to, with OTLP over HTTP, such as `http://127.0.0.1:4318`. Only http:// and
    /// no path. Tracing is off if not set
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<Given<Endpoint>>,

    /// Share of requests without a `traceparent` header to trace, from 0 to 1. Requests with one are traced if it is sampled
    #[arg(
        long,
        value_name = "RATIO",
        env = "OTEL_TRACES_SAMPLER_ARG",
        default_value = config::OTLP_SAMPLE_RATIO.to_string()
    )]
    otlp_sample_ratio: Given<Ratio>,
}

impl OtlpArgs {
    pub(super) fn resolve(self, mistakes: &mut Mistakes) -> Option<Settings> {
        let collector = mistakes.optional(self.otlp_endpoint);
        Some(Settings { collector, sample_ratio: mistakes.value(self.otlp_sample_ratio)? })
    }

    /// The flags that result in these settings.
    pub(super) fn from_settings(settings: &Settings) -> Self {
        Self {
            otlp_endpoint: settings.collector.clone().map(Given::from_value),
            otlp_sample_ratio: Given::from_value(settings.sample_ratio),
        }
    }
}

/// The URL of a collector.
#[derive(Debug, Clone)]
struct Endpoint;

impl Syntax for Endpoint {
    type Value = Target;

    fn expected() -> String {
        "http://HOST:PORT without a path, such as http://127.0.0.1:4318".to_owned()
    }

    fn parse(text: &str) -> Option<Target> {
        Target::parse(text).ok()
    }

    fn show(value: &Target) -> String {
        format!("http://{value}")
    }
}

/// A share of requests.
#[derive(Debug, Clone)]
struct Ratio;

impl Syntax for Ratio {
    type Value = f64;

    fn expected() -> String {
        "a number from 0 to 1, such as 0.01".to_owned()
    }

    fn parse(text: &str) -> Option<f64> {
        text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
    }

    fn show(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Command;
    use crate::cli::tests::{mistakes, parse_line};

    #[test]
    fn tracing_is_off_by_default() {
        for (line, flags) in [
            ("", ["", "0.01"]),
            ("--otlp-endpoint=", ["", "0.01"]),
            ("--otlp-endpoint http://localhost:4318/ -otlp-sample-ratio=1", ["http://localhost:4318", "1"]),
        ] {
            let Ok(Command::Serve(config)) = parse_line(line) else { panic!("{line}") };
            let shown = crate::cli::flags(&config).into_iter().filter(|(name, _)| name.starts_with("--otlp"));
            assert_eq!(shown.map(|(_, value)| value).collect::<Vec<_>>(), flags, "{line}");
            assert_eq!(config.otlp.collector.is_some(), !flags[0].is_empty());
        }
    }

    #[test]
    fn mistakes_contain_what_was_expected() {
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
