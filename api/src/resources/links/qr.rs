//! `GET /links/{id}/qr`

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use qrcode::{Color, EcLevel, QrCode};
use schemas::id::LinkId;
use serde::Deserialize;
use service::http::ApiError;
use warp::reply::Response;

use crate::app::App;
use crate::resources::links::object;
use crate::web::caller::Caller;
use crate::web::operation::Answer;
use crate::web::request::Query;

/// Light modules around the code, on each side (ISO/IEC 18004).
const QUIET_ZONE: usize = 4;

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

/// A QR code as an image.
#[derive(Debug)]
pub(crate) struct Qr {
    media_type: &'static str,
    image: Vec<u8>,
}

impl Answer for Qr {
    fn respond(self, _: StatusCode) -> Response {
        let mut response = Response::new(self.image.into());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        response
    }
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

/// The modules of a code, without the quiet zone.
struct Modules {
    width: usize,
    colors: Vec<Color>,
}

impl Modules {
    fn of(url: &str) -> Result<Self, ApiError> {
        // Level M corrects 15 % of damage, and has room for 2,331 bytes.
        let code = QrCode::with_error_correction_level(url, EcLevel::M).map_err(ApiError::internal)?;
        Ok(Self { width: code.width(), colors: code.to_colors() })
    }

    fn is_dark(&self, x: usize, y: usize) -> bool {
        self.colors[y * self.width + x] == Color::Dark
    }

    /// Returns the width including the quiet zone.
    fn full_width(&self) -> usize {
        self.width + 2 * QUIET_ZONE
    }
}

/// Draws one path of all dark modules; adjacent modules of a row are one stroke.
fn svg(modules: &Modules, size: usize) -> Result<Qr, ApiError> {
    let full = modules.full_width();
    let mut path = String::new();
    for y in 0..modules.width {
        let mut x = 0;
        while x < modules.width {
            let run = (x..modules.width).take_while(|&x| modules.is_dark(x, y)).count();
            if run > 0 {
                path.push_str(&format!("M{} {}h{run}v1h-{run}z", x + QUIET_ZONE, y + QUIET_ZONE));
            }
            x += run.max(1);
        }
    }
    let image = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{size}\" height=\"{size}\" viewBox=\"0 0 {full} {full}\" \
         shape-rendering=\"crispEdges\"><path fill=\"#fff\" d=\"M0 0h{full}v{full}H0z\"/><path d=\"{path}\"/></svg>"
    );
    Ok(Qr { media_type: "image/svg+xml", image: image.into_bytes() })
}

/// Draws whole pixels, one bit each. A remainder widens the quiet zone.
fn png(modules: &Modules, size: usize) -> Result<Qr, ApiError> {
    let scale = size / modules.full_width();
    if scale == 0 {
        let message = format!("must be at least {} for this link", modules.full_width());
        return Err(ApiError::invalid_field("size", message));
    }
    let margin = (size - modules.width * scale) / 2;
    let line = size.div_ceil(8);
    // A set bit is white.
    let mut pixels = vec![0xff_u8; line * size];
    for (y, row) in pixels.chunks_exact_mut(line).enumerate().skip(margin).take(modules.width * scale) {
        for x in 0..modules.width * scale {
            if modules.is_dark(x / scale, (y - margin) / scale) {
                let at = margin + x;
                row[at / 8] &= !(0x80 >> (at % 8));
            }
        }
    }
    let mut image = Vec::new();
    // 2048 at most.
    let side = u32::try_from(size).map_err(ApiError::internal)?;
    let mut encoder = png::Encoder::new(&mut image, side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let mut writer = encoder.write_header().map_err(ApiError::internal)?;
    writer.write_image_data(&pixels).map_err(ApiError::internal)?;
    writer.finish().map_err(ApiError::internal)?;
    Ok(Qr { media_type: "image/png", image })
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

    #[test]
    fn the_png_shows_every_module_and_a_quiet_zone() {
        let modules = Modules::of("https://go.example/spring").unwrap();
        for size in [64, 100, 256, 2048] {
            let image = png(&modules, size).unwrap().image;
            let mut reader = png::Decoder::new(std::io::Cursor::new(image)).read_info().unwrap();
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut pixels).unwrap();
            assert_eq!((info.width as usize, info.height as usize), (size, size));
            let dark = |x: usize, y: usize| pixels[y * info.line_size + x / 8] & (0x80 >> (x % 8)) == 0;
            let scale = size / modules.full_width();
            let margin = (size - modules.width * scale) / 2;
            assert!(margin >= QUIET_ZONE * scale);
            for y in 0..size {
                for x in 0..size {
                    let inside = (margin..margin + modules.width * scale).contains(&x)
                        && (margin..margin + modules.width * scale).contains(&y);
                    let expected = inside && modules.is_dark((x - margin) / scale, (y - margin) / scale);
                    assert_eq!(dark(x, y), expected, "{size}: {x}, {y}");
                }
            }
        }
    }

    #[test]
    fn the_svg_has_every_dark_module() {
        let modules = Modules::of("https://go.example/spring").unwrap();
        let image = String::from_utf8(svg(&modules, 300).unwrap().image).unwrap();
        assert!(image.contains("width=\"300\""));
        let strokes = image.rsplit("d=\"").next().unwrap().split('M').skip(1);
        let drawn: usize =
            strokes.map(|stroke| stroke.split(['h', 'v']).nth(1).unwrap().parse::<usize>().unwrap()).sum();
        assert_eq!(drawn, modules.colors.iter().filter(|color| **color == Color::Dark).count());
    }

    #[test]
    fn a_png_too_small_for_its_code_is_rejected() {
        let modules = Modules::of(&format!("https://{}/x", "a".repeat(400))).unwrap();
        assert!(png(&modules, 64).is_err());
        assert!(png(&modules, 256).is_ok());
    }
}
