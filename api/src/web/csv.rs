//! Writes CSV (RFC 4180) that spreadsheets do not execute.

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

/// Returns whether a spreadsheet would read a text as a formula.
fn is_like_a_formula(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'])
}

/// Returns whether a text gets an apostrophe: it looks like a formula, or does so behind its own apostrophes, which
/// could not be told from an added one.
fn needs_apostrophe(text: &str) -> bool {
    is_like_a_formula(text.trim_start_matches('\''))
}

/// Removes the apostrophe that [`write_row`] added to a cell.
pub(crate) fn without_apostrophe(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|rest| needs_apostrophe(rest)).unwrap_or(cell)
}

/// Appends a field, quoted where necessary.
///
/// Visitors write some of these texts. A text that begins like a formula gets an apostrophe, which spreadsheets read as
/// "text follows" (OWASP, "CSV Injection").
fn write_field(out: &mut Vec<u8>, field: &str) {
    let needs_apostrophe = needs_apostrophe(field);
    let must_be_quoted = needs_apostrophe || field.contains(['"', ',', '\r', '\n']);
    if !must_be_quoted {
        return out.extend_from_slice(field.as_bytes());
    }
    out.push(b'"');
    if needs_apostrophe {
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
    fn a_csv_field_is_no_formula_and_stays_in_its_quotes() {
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
            ("'=1", "\"''=1\""),
            ("''@", "\"'''@\""),
            ("'tis", "'tis"),
        ] {
            assert_eq!(field(text), written);
        }
    }

    #[test]
    fn only_added_apostrophes_are_removed() {
        for text in
            ["", "'", "''", "a", "'a", "=1", "'=1", "''=1", "-", "'\t", "\n'=", "'＝", "a'=1", "'\"=1"]
        {
            let cell = if needs_apostrophe(text) { format!("'{text}") } else { text.to_owned() };
            assert_eq!(without_apostrophe(&cell), text);
        }
    }
}
