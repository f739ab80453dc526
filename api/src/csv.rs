//! CSV (RFC 4180): rows that leave.

/// Appends a row.
pub(crate) fn write_row(out: &mut Vec<u8>, fields: &[impl AsRef<str>]) {
    for (place, field) in fields.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write_field(out, field.as_ref());
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a spreadsheet would take a text for a formula.
pub(crate) fn is_like_a_formula(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'])
}

/// Appends a field, quoted where it must be.
///
/// Whoever clicks writes some of these texts. A spreadsheet takes one that begins like a formula for one, so it gets
/// an apostrophe before it, which spreadsheets read as "a text follows" (OWASP, "CSV Injection").
fn write_field(out: &mut Vec<u8>, field: &str) {
    let is_like_a_formula = is_like_a_formula(field);
    let must_be_quoted = is_like_a_formula || field.contains(['"', ',', '\r', '\n']);
    if !must_be_quoted {
        return out.extend_from_slice(field.as_bytes());
    }
    out.push(b'"');
    if is_like_a_formula {
        out.push(b'\'');
    }
    for byte in field.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_csv_is_never_a_formula_and_never_ends_early() {
        let field = |text: &str| {
            let mut out = Vec::new();
            write_field(&mut out, text);
            String::from_utf8(out).unwrap()
        };
        for (text, written) in [
            ("plain", "plain"),
            ("", ""),
            ("a=b", "a=b"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\r\nlines", "\"two\r\nlines\""),
            ("=1+1", "\"'=1+1\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\t=1\""),
            ("=\"a\"", "\"'=\"\"a\"\"\""),
        ] {
            assert_eq!(field(text), written);
        }
    }
}
