//! Reads rows of CSV from a file in pieces.
//!
//! Supports the variants of spreadsheets: a byte order mark, UTF-16, semicolons or tabs. Text in another encoding is
//! rejected where it is not ASCII.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::columns::Columns;

/// Longest row, in bytes, which bounds an unclosed quotation mark.
const MAX_ROW: usize = 64 << 10;

/// Most cells of a row.
const MAX_CELLS: usize = 1_000;

/// Characters of a row that are reported.
const MAX_CONTENT: usize = 500;

/// A row of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    /// The row's number in a spreadsheet: the first row is 1, empty rows count, line breaks within cells do not.
    pub(super) line: i64,
    /// Its beginning in the file.
    pub(super) content: String,
    /// Its cells, or an error.
    pub(super) cells: Result<Vec<String>, &'static str>,
}

/// The result of reading.
#[derive(Debug)]
pub(super) enum Next {
    Row(Row),
    /// Not a row; the rest is not CSV.
    Broken(Row),
    /// More bytes are needed.
    More,
    End,
}

/// A reader of rows.
pub(super) struct Rows {
    decoder: Decoder,
    /// Decoded bytes that are not read yet.
    text: Vec<u8>,
    /// How many of them have been read.
    read: usize,
    is_end: bool,
    reader: Option<Reader>,
    row: Vec<u8>,
    row_len: usize,
    ends: Vec<usize>,
    cells: usize,
    source: Source,
}

/// The position of rows in the file.
#[derive(Default)]
struct Source {
    /// The number of the present row.
    line: i64,
    /// The beginning of its bytes; empty before its first one.
    content: Vec<u8>,
    /// Whether the last byte is a carriage return: a following line feed belongs to it.
    after_return: bool,
}

impl Source {
    /// Advances over read bytes.
    fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let is_break = matches!(byte, b'\n' | b'\r');
            if self.content.is_empty() && is_break {
                // An empty row, or the second half of a line break.
                self.line += i64::from(!(*byte == b'\n' && self.after_return));
            } else if self.content.len() < 4 * MAX_CONTENT {
                self.content.push(*byte);
            }
            self.after_return = *byte == b'\r';
        }
    }

    /// Ends a row. Returns its number and its beginning.
    fn take(&mut self) -> (i64, String) {
        self.line += 1;
        let content = String::from_utf8_lossy(&self.content);
        // Postgres has no NUL in a text.
        let shown = |character| if character == '\0' { char::REPLACEMENT_CHARACTER } else { character };
        let content = content.trim_end_matches(['\r', '\n']).chars().map(shown).take(MAX_CONTENT).collect();
        self.content.clear();
        (self.line, content)
    }
}

impl Rows {
    /// Creates a reader.
    pub(super) fn new() -> Self {
        Self {
            decoder: Decoder::Unknown(Vec::new()),
            text: Vec::new(),
            read: 0,
            is_end: false,
            reader: None,
            row: vec![0; MAX_ROW],
            row_len: 0,
            ends: vec![0; MAX_CELLS],
            cells: 0,
            source: Source::default(),
        }
    }

    /// Checks the header at the beginning of a file.
    pub(super) fn check_header(beginning: &[u8]) -> Result<(), &'static str> {
        let mut rows = Self::new();
        rows.push(beginning);
        rows.end();
        match rows.next() {
            Next::Row(row) | Next::Broken(row) => Columns::of(&row.cells?).map(drop),
            Next::More | Next::End => Err("is missing: the file is empty"),
        }
    }

    /// Adds the next bytes of the file.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.text.drain(..self.read);
        self.read = 0;
        self.decoder.decode(bytes, &mut self.text);
    }

    /// Marks the end of the file.
    pub(super) fn end(&mut self) {
        self.decoder.finish(&mut self.text);
        self.is_end = true;
    }

    /// Reads the next row.
    pub(super) fn next(&mut self) -> Next {
        if self.reader.is_none() {
            let line_end = self.text.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            if line_end.is_none() && !self.is_end && self.text.len() < MAX_ROW {
                return Next::More;
            }
            let delimiter = delimiter(&self.text[..line_end.unwrap_or(self.text.len()).min(MAX_ROW)]);
            self.reader = Some(ReaderBuilder::new().delimiter(delimiter).build());
        }
        let Some(reader) = &mut self.reader else { return Next::End };
        loop {
            let input = &self.text[self.read..];
            // To the parser, empty input means the end.
            if input.is_empty() && !self.is_end {
                return Next::More;
            }
            let (result, read, written, ended) =
                reader.read_record(input, &mut self.row[self.row_len..], &mut self.ends[self.cells..]);
            self.source.read(&input[..read]);
            self.read += read;
            self.row_len += written;
            self.cells += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => {
                    return Next::Broken(
                        self.row(Err("has more than 64 KB, so perhaps a quotation mark is not closed")),
                    );
                }
                ReadRecordResult::OutputEndsFull => {
                    return Next::Broken(self.row(Err("has more than 1,000 cells")));
                }
                ReadRecordResult::End => return Next::End,
                ReadRecordResult::Record => {
                    let cells = self.take_cells();
                    return Next::Row(self.row(cells));
                }
            }
        }
    }

    fn row(&mut self, cells: Result<Vec<String>, &'static str>) -> Row {
        let (line, content) = self.source.take();
        Row { line, content, cells }
    }

    fn take_cells(&mut self) -> Result<Vec<String>, &'static str> {
        let mut start = 0;
        let cells = self.ends[..self.cells].iter().map(|end| {
            let cell = std::str::from_utf8(&self.row[start..*end]).map(str::to_owned);
            start = *end;
            cell.map_err(|_| "is not in UTF-8: save the file as \"CSV UTF-8\"")
        });
        let cells = cells.collect();
        (self.row_len, self.cells) = (0, 0);
        cells
    }
}

/// Returns the delimiter: of those that spreadsheets use, the most frequent one in the header.
fn delimiter(header: &[u8]) -> u8 {
    let count = |wanted: u8| {
        let mut is_quoted = false;
        header
            .iter()
            .filter(|byte| {
                is_quoted ^= **byte == b'"';
                !is_quoted && **byte == wanted
            })
            .count()
    };
    // The first of equals.
    [b',', b';', b'\t'].into_iter().rev().max_by_key(|byte| count(*byte)).unwrap_or(b',')
}

/// Decodes the file to UTF-8.
enum Decoder {
    /// Undecided: too few bytes.
    Unknown(Vec<u8>),
    Utf8,
    /// Little-endian or big-endian, with a pending half unit and a pending half of a surrogate pair.
    Utf16 {
        is_big: bool,
        byte: Option<u8>,
        high: Option<u16>,
    },
}

impl Decoder {
    fn decode(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Unknown(seen) => {
                seen.extend_from_slice(bytes);
                if seen.len() >= 3 {
                    self.settle(out);
                }
            }
            Self::Utf8 => out.extend_from_slice(bytes),
            Self::Utf16 { is_big, byte, high } => {
                for second in bytes {
                    let Some(first) = byte.take() else {
                        *byte = Some(*second);
                        continue;
                    };
                    let pair = [first, *second];
                    let unit = if *is_big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) };
                    let units = high.take().into_iter().chain([unit]);
                    if (0xd800..0xdc00).contains(&unit) {
                        // The first half of a surrogate pair; a pending one before it was invalid.
                        *high = Some(unit);
                        continue;
                    }
                    for character in char::decode_utf16(units) {
                        let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
            }
        }
    }

    /// Decides by the byte order mark; the default is UTF-8.
    fn settle(&mut self, out: &mut Vec<u8>) {
        let Self::Unknown(seen) = self else { return };
        let seen = std::mem::take(seen);
        let (decoder, mark) = match seen.as_slice() {
            [0xef, 0xbb, 0xbf, ..] => (Self::Utf8, 3),
            [0xff, 0xfe, ..] => (Self::Utf16 { is_big: false, byte: None, high: None }, 2),
            [0xfe, 0xff, ..] => (Self::Utf16 { is_big: true, byte: None, high: None }, 2),
            _ => (Self::Utf8, 0),
        };
        *self = decoder;
        self.decode(&seen[mark..], out);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.settle(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file in pieces of a size.
    fn read_in(bytes: &[u8], size: usize) -> Vec<Row> {
        let mut rows = Rows::new();
        let mut pieces = bytes.chunks(size);
        let mut read = Vec::new();
        loop {
            match rows.next() {
                Next::Row(row) => read.push(row),
                Next::Broken(row) => {
                    read.push(row);
                    return read;
                }
                Next::More => match pieces.next() {
                    Some(piece) => rows.push(piece),
                    None => rows.end(),
                },
                Next::End => return read,
            }
        }
    }

    fn read_rows(bytes: &[u8]) -> Vec<Row> {
        let whole = read_in(bytes, bytes.len().max(1));
        for size in [1, 2, 3, 7] {
            assert_eq!(read_in(bytes, size), whole, "in pieces of {size}");
        }
        whole
    }

    fn read(bytes: &[u8]) -> Vec<Result<Vec<String>, &'static str>> {
        read_rows(bytes).into_iter().map(|row| row.cells).collect()
    }

    fn row(cells: &[&str]) -> Result<Vec<String>, &'static str> {
        Ok(cells.iter().map(|cell| (*cell).to_owned()).collect())
    }

    #[test]
    fn every_csv_variant_of_spreadsheets_is_read() {
        let expected =
            vec![row(&["name", "destination"]), row(&["Zürich, \"été\" 🚲", "https://example.com"])];
        let text = "name,destination\r\n\"Zürich, \"\"été\"\" 🚲\",https://example.com\r\n";
        assert_eq!(read(text.as_bytes()), expected);
        assert_eq!(read(format!("\u{feff}{text}").as_bytes()), expected, "with a byte order mark");
        let with_mark = format!("\u{feff}{text}");
        let little: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = with_mark.encode_utf16().flat_map(u16::to_be_bytes).collect();
        assert_eq!(read(&little), expected);
        assert_eq!(read(&big), expected);
        let other = "name;destination\n\"Zürich, \"\"été\"\" 🚲\";https://example.com";
        assert_eq!(read(other.as_bytes()), expected, "with semicolons, and no line break at the end");
        assert_eq!(read(other.replace(';', "\t").replace('\n', "\r").as_bytes()), expected);
        assert_eq!(read(text.replace("\r\n", "\n\n\n").as_bytes()), expected, "empty lines are skipped");
    }

    #[test]
    fn undecodable_rows_are_rejected() {
        let read = read(b"name,destination\nZ\xfcrich,https://example.com\nb,https://example.com\n");
        assert!(read[1].as_ref().unwrap_err().contains("UTF-8"));
        assert_eq!(read[2], row(&["b", "https://example.com"]));
    }

    #[test]
    fn an_unclosed_quotation_mark_ends_the_file() {
        let file = format!("name,destination\n\"a,{}", "https://example.com\n".repeat(10_000));
        let rows = read_in(file.as_bytes(), 1_000);
        assert!(rows[1].cells.as_ref().unwrap_err().contains("quotation mark"));
        assert_eq!((rows.len(), rows[1].line), (2, 2));
        assert_eq!(rows[1].content.chars().count(), MAX_CONTENT);
        assert!(rows[1].content.starts_with("\"a,https://example.com\n"), "{}", rows[1].content);
    }

    #[test]
    fn rows_are_numbered_as_in_a_spreadsheet() {
        let file = "name,destination\n\n\"two\nlines\" , \"x\"\n\n\nlast,é\n\n";
        let numbered = [(1, "name,destination"), (3, "\"two\nlines\" , \"x\""), (6, "last,é")];
        let with = |line_break: &str| {
            let rows = read_rows(file.replace('\n', line_break).as_bytes());
            let plain = |row: Row| (row.line, row.content.replace(line_break, "\n"));
            rows.into_iter().map(plain).collect::<Vec<_>>()
        };
        for line_break in ["\n", "\r\n", "\r"] {
            let rows = with(line_break);
            assert_eq!(
                rows.iter().map(|(line, content)| (*line, content.as_str())).collect::<Vec<_>>(),
                numbered,
                "{line_break:?}"
            );
        }
        assert_eq!(read_rows(b"\r\n\r\na,b")[0].line, 3, "empty rows before the header count");
        assert_eq!(read_rows(b"a\nZ\xfcrich\n")[1].content, "Z\u{fffd}rich");
        assert_eq!(read_rows("é".repeat(600).as_bytes())[0].content, "é".repeat(500));
    }

    #[test]
    fn a_header_is_checked_before_anything_else() {
        assert!(Rows::check_header(b"\xef\xbb\xbfName,Destination\n").is_ok());
        assert!(Rows::check_header(b"destination").is_ok());
        for bad in [&b""[..], b"\n\n", b"name,slug\n", b"n\xfcme,destination\n", b"\xff\xfe", b"\x00\x01\x02"]
        {
            assert!(Rows::check_header(bad).is_err(), "{bad:?}");
        }
    }
}
