//! The row of a conversion.

use super::row_binary::{millis, text, uuid};
use crate::message::Conversion;

/// The columns that [`write_conversion`] writes, in the order of its bytes.
pub const CONVERSION_COLUMNS: &str =
    "workspace_id, link_id, occurred_at, click_id, conversion_id, converted_at";

/// Appends the bytes of a conversion's row.
pub fn write_conversion(conversion: &Conversion, out: &mut Vec<u8>) {
    uuid(out, conversion.workspace_id.uuid());
    uuid(out, conversion.link_id.uuid());
    // `occurred_at`. Statistics count a conversion then.
    millis(out, conversion.clicked_at);
    text(out, &conversion.click_id);
    uuid(out, conversion.conversion_id.uuid());
    millis(out, conversion.converted_at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message as _;

    #[test]
    fn the_bytes_are_in_column_order() {
        let conversion = Conversion::decode(include_bytes!("../../fixtures/conversion.v1.json")).unwrap();
        let mut bytes = Vec::new();
        write_conversion(&conversion, &mut bytes);
        assert_eq!(bytes[32..40], conversion.clicked_at.timestamp_millis().to_le_bytes());
        assert_eq!(usize::from(bytes[40]), conversion.click_id.len());
        assert_eq!(bytes[bytes.len() - 8..], conversion.converted_at.timestamp_millis().to_le_bytes());
        assert_eq!(bytes.len(), 32 + 8 + 1 + conversion.click_id.len() + 16 + 8);
    }
}
