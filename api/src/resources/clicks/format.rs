//! Formats of clicks: JSON pages, CSV, and a JSON object per line.

use http::HeaderMap;
use http::header::ACCEPT;
use serde::Deserialize;
use service::http::ApiError;

use super::click::Click;
use crate::web::csv;
use crate::web::request::{Argument, Request};

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Format {
    /// A page.
    #[serde(rename = "json")]
    Json,
    /// An export of the whole window.
    #[serde(rename = "csv")]
    Csv,
    /// An export of the whole window.
    #[serde(rename = "ndjson")]
    JsonLines,
}

impl Format {
    const BY_TYPE: [(&str, Self); 3] = [
        ("application/json", Self::Json),
        ("text/csv", Self::Csv),
        ("application/x-ndjson", Self::JsonLines),
    ];

    /// Chooses the format that `Accept` prefers, the first of equals; the default is JSON.
    pub(crate) fn accepted(headers: &HeaderMap) -> Self {
        let named = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next()?;
                let (_, format) =
                    Self::BY_TYPE.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
                let quality = parts.find_map(|part| part.strip_prefix("q=")).unwrap_or("1");
                Some((format, quality.parse::<f32>().unwrap_or(1.0)))
            })
            .filter(|(_, quality)| *quality > 0.0);
        let mut best: Option<(Self, f32)> = None;
        for (format, quality) in named {
            if best.is_none_or(|(_, most)| quality > most) {
                best = Some((format, quality));
            }
        }
        best.map_or(Self::Json, |(format, _)| format)
    }

    /// Returns the media type of an export.
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8",
            Self::JsonLines => "application/x-ndjson",
        }
    }

    /// Returns the `Content-Disposition` of an export.
    pub(super) const fn disposition(self) -> &'static str {
        match self {
            Self::Json => "inline",
            Self::Csv => r#"attachment; filename="clicks.csv""#,
            Self::JsonLines => r#"attachment; filename="clicks.ndjson""#,
        }
    }
}

/// The form that the `Accept` header asks for.
impl Argument for Format {
    async fn take(request: &mut Request) -> Result<Self, ApiError> {
        Ok(Self::accepted(&request.head.headers))
    }
}

/// The first line of a CSV export.
pub(super) const CSV_HEADER: &str = "click_id,link_id,slug,occurred_at,class,country,device_type,browser,os,referrer,\
     utm_source,utm_medium,utm_campaign,utm_term,utm_content,external_click_id\r\n";

/// Appends a click as a line of CSV (RFC 4180). Unknown values are empty.
pub(super) fn write_csv(out: &mut Vec<u8>, click: &Click) {
    let optional = |text: &'_ Option<String>| text.clone().unwrap_or_default();
    let fields = [
        click.click_id.clone(),
        click.link_id.to_string(),
        click.slug.clone(),
        schemas::time::text(click.occurred_at),
        click.class.clone(),
        optional(&click.country),
        optional(&click.device_type),
        optional(&click.browser),
        optional(&click.os),
        optional(&click.referrer),
        optional(&click.utm_source),
        optional(&click.utm_medium),
        optional(&click.utm_campaign),
        optional(&click.utm_term),
        optional(&click.utm_content),
        optional(&click.external_click_id),
    ];
    csv::write_row(out, &fields);
}

/// Appends a click as a line of JSON.
pub(super) fn write_json_line(out: &mut Vec<u8>, click: &Click) {
    // Texts, ids and times always become JSON, and a Vec takes everything.
    let _ = serde_json::to_writer(&mut *out, click);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn accepted(accept: &'static str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        Format::accepted(&headers)
    }

    #[test]
    fn the_preferred_format_is_chosen() {
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Json);
        for (accept, format) in [
            ("text/csv", Format::Csv),
            ("Text/CSV; charset=utf-8", Format::Csv),
            ("application/x-ndjson", Format::JsonLines),
            ("application/json", Format::Json),
            ("*/*", Format::Json),
            ("text/html, */*;q=0.8", Format::Json),
            ("", Format::Json),
            ("application/json;q=0.5, text/csv", Format::Csv),
            ("application/x-ndjson;q=0.9, text/csv;q=0.9", Format::JsonLines),
            ("text/csv;q=0, */*", Format::Json),
            ("text/csv;q=nonsense", Format::Csv),
        ] {
            assert_eq!(accepted(accept), format, "{accept}");
        }
    }
}
