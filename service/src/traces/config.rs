//! The settings, under the names that OpenTelemetry gives them.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::ids::Ratio;

/// The collector and what it gets; flatten it into the service's `Config`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceConfig {
    /// Collector of traces, as http://host:4318 or https://host. Spans are sent to /v1/traces below it, as OTLP over
    /// HTTP in protobuf. Without it, nothing is traced.
    #[arg(long = "otlp-endpoint", value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_parser = endpoint)]
    pub(super) otlp_endpoint: Option<Url>,

    /// Headers of requests to the collector, as name=value[,name=value] with percent-encoded values.
    #[arg(
        long = "otlp-headers",
        value_name = "HEADERS",
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true
    )]
    pub(super) otlp_headers: Option<Headers>,

    /// Share of clicks and webhook events that are traced, from 0 to 1. It must be the same in every program.
    #[arg(
        long = "trace-ratio",
        value_name = "RATIO",
        env = "OTEL_TRACES_SAMPLER_ARG",
        default_value = "0.001"
    )]
    pub(super) trace_ratio: Ratio,
}

/// Returns the address of the collector's traces.
fn endpoint(text: &str) -> Result<Url, String> {
    let expected = || "expected http:// or https://, a host and a port".to_owned();
    let mut url = Url::parse(text).map_err(|_| expected())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(expected());
    }
    url.path_segments_mut().map_err(|()| expected())?.pop_if_empty().extend(["v1", "traces"]);
    Ok(url)
}

/// Headers of requests to the collector. Debug shows no values.
#[derive(Debug, Clone, Default)]
pub(super) struct Headers(pub(super) HeaderMap);

/// The error for malformed headers; it does not contain the text, which may have a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected name=value[,name=value] with percent-encoded values")]
pub(super) struct HeadersFault;

impl FromStr for Headers {
    type Err = HeadersFault;

    fn from_str(text: &str) -> Result<Self, HeadersFault> {
        let mut headers = HeaderMap::new();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').ok_or(HeadersFault)?;
            let name: HeaderName = name.trim().parse().map_err(|_| HeadersFault)?;
            let value = percent_decode_str(value.trim()).collect::<Vec<u8>>();
            let mut value = HeaderValue::try_from(value).map_err(|_| HeadersFault)?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traces_url_extends_the_endpoint() {
        for (text, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("https://example.com/otlp/", "https://example.com/otlp/v1/traces"),
        ] {
            assert_eq!(endpoint(text).map(String::from).as_deref(), Ok(url));
        }
        for invalid in ["collector:4318", "grpc://collector:4317", "/v1/traces", "http://"] {
            assert!(endpoint(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn headers_are_decoded_and_never_shown() {
        let Headers(headers) = "Authorization=Basic%20aHVudGVyMg==, x-scope = one".parse().unwrap();
        assert_eq!(headers["authorization"], "Basic aHVudGVyMg==");
        assert_eq!(headers["x-scope"], "one");
        assert!(!format!("{headers:?}").contains("aHVudGVyMg"));
        for invalid in ["hunter2", "na me=hunter2", "name=hunter2%0a", "name=hunter2,"] {
            let fault = invalid.parse::<Headers>().unwrap_err().to_string();
            assert!(!fault.contains("hunter2"), "{fault}");
        }
    }
}
