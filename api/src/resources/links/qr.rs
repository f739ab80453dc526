//! `GET /links/{id}/qr`

use schemas::id::LinkId;
use serde::Deserialize;
use service::http::ApiError;

use crate::app::App;
use crate::resources::links::object;
use crate::web::caller::Caller;
use crate::web::qr::{Modules, Qr, png, svg};
use crate::web::request::Query;

/// Allowed sizes in pixels, and the default.
const SIZES: std::ops::RangeInclusive<usize> = 64..=2048;
const DEFAULT_SIZE: usize = 256;

/// The query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Look {
    format: Option<String>,
    size: Option<String>,
}

/// Returns the QR code of a link's short URL.
pub(crate) async fn qr(
    caller: Caller,
    id: LinkId,
    Query(look): Query<Look>,
    app: App,
) -> Result<Qr, ApiError> {
    let size = parse_size(look.size.as_deref())?;
    let draw = match look.format.as_deref() {
        None | Some("svg") => svg,
        Some("png") => png,
        Some(_) => return Err(ApiError::invalid_field("format", "must be svg or png")),
    };
    let row = object::require(&app, caller.workspace, id).await?;
    draw(&Modules::of(&app.short_url(&row.slug))?, size)
}

fn parse_size(text: Option<&str>) -> Result<usize, ApiError> {
    let Some(text) = text else { return Ok(DEFAULT_SIZE) };
    text.parse()
        .ok()
        .filter(|size| SIZES.contains(size))
        .ok_or_else(|| ApiError::invalid_field("size", "must be a whole number of pixels from 64 to 2048"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_from_64_to_2048() {
        assert_eq!(parse_size(None).unwrap(), 256);
        for good in ["64", "2048"] {
            assert!(parse_size(Some(good)).is_ok());
        }
        for bad in ["", "63", "2049", "-64", "1e2", "abc", "99999999999999999999"] {
            assert!(parse_size(Some(bad)).is_err(), "{bad}");
        }
    }
}
