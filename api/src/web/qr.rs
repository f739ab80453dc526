//! QR codes as images.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use qrcode::{Color, EcLevel, QrCode};
use service::http::ApiError;
use warp::reply::Response;

use super::operation::Answer;

/// Light modules around the code, on each side (ISO/IEC 18004).
const QUIET_ZONE: usize = 4;

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

/// The modules of a code, without the quiet zone.
pub(crate) struct Modules {
    width: usize,
    colors: Vec<Color>,
}

impl Modules {
    /// Computes the code of a text.
    pub(crate) fn of(text: &str) -> Result<Self, ApiError> {
        // Level M corrects 15 % of damage, and has room for 2,331 bytes.
        let code = QrCode::with_error_correction_level(text, EcLevel::M).map_err(ApiError::internal)?;
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
pub(crate) fn svg(modules: &Modules, size: usize) -> Result<Qr, ApiError> {
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
pub(crate) fn png(modules: &Modules, size: usize) -> Result<Qr, ApiError> {
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
