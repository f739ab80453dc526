//! Unreadable records on topic `dead-letters`: the value is the original bytes, the key is the original position, and
//! headers hold the rest.

/// The key and headers of a dead letter: where the original record was, and why it could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetter {
    /// The full name of the original topic.
    pub topic: String,
    /// The original partition and offset; `None` when the headers are missing.
    pub position: Option<(i32, u64)>,
    /// The number of the partition's log, for topics whose logs are numbered; see [`crate::row::source`].
    pub log: Option<u16>,
    /// Why the record could not be read.
    pub reason: String,
    /// The expected schema, such as `click.v1`.
    pub schema: String,
    /// The original key.
    pub key: Option<Vec<u8>>,
}

impl DeadLetter {
    /// Reads the headers of a record; `header` returns the value of the named one.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        let text = |name| String::from_utf8_lossy(header(name).unwrap_or_default()).into_owned();
        let position = || Some((text("partition").parse().ok()?, text("offset").parse().ok()?));
        Self {
            topic: text("topic"),
            position: position(),
            log: text("generation").parse().ok(),
            reason: text("reason"),
            schema: text("schema"),
            key: header("key").map(<[u8]>::to_vec),
        }
    }

    /// Returns the record's key, which is the same for a second copy of the dead letter.
    ///
    /// It is also the same for the same position in a replaced log; the header of `log` differs.
    pub fn record_key(&self) -> String {
        let (partition, offset) = self.position.unwrap_or_default();
        format!("{}/{partition}/{offset}", self.topic)
    }

    /// Returns the record's headers.
    pub fn headers(&self) -> Vec<(&'static str, Option<Vec<u8>>)> {
        let (partition, offset) = self.position.unwrap_or_default();
        let mut headers = vec![
            ("topic", Some(self.topic.clone().into_bytes())),
            ("partition", Some(partition.to_string().into_bytes())),
            ("offset", Some(offset.to_string().into_bytes())),
            ("reason", Some(self.reason.clone().into_bytes())),
            ("schema", Some(self.schema.clone().into_bytes())),
            ("key", self.key.clone()),
        ];
        headers.extend(self.log.map(|log| ("generation", Some(log.to_string().into_bytes()))));
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_may_be_missing() {
        let letter = DeadLetter {
            topic: "dev.clicks".to_owned(),
            position: Some((3, 17)),
            log: Some(2),
            reason: "malformed message".to_owned(),
            schema: "click.v1".to_owned(),
            key: Some(b"\xff".to_vec()),
        };
        assert_eq!(letter.record_key(), "dev.clicks/3/17");
        let headers = letter.headers();
        let header = |name: &str| headers.iter().find(|(key, _)| *key == name)?.1.as_deref();
        assert_eq!(DeadLetter::read(header), letter);
        assert_eq!(DeadLetter::read(|_| None), DeadLetter::default());
    }
}
