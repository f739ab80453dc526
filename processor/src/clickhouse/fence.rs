//! Fencing: only the holder of a source's highest epoch may write its rows.

use std::time::Duration;

use schemas::clickhouse::epoch_guard;
use tokio::time::sleep;
use uuid::Uuid;

use super::{Store, StoreError, in_time};

/// How often a takeover checks whether older inserts are still running.
pub(crate) const OLDER_INSERTS_INTERVAL: Duration = Duration::from_millis(100);

/// The epoch under which a statement writes. ClickHouse rejects it once a higher epoch exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FencingToken {
    /// The source.
    pub src: u32,
    /// The epoch.
    pub epoch: u64,
}

impl FencingToken {
    /// The condition that a statement checks.
    pub(crate) fn guard(self) -> String {
        epoch_guard(self.src, self.epoch)
    }

    /// A query id by which [`Store::older_inserts`] finds the statement.
    pub(crate) fn statement_id(self) -> String {
        format!("clicks-{}-{}-{}", self.src, self.epoch, Uuid::now_v7().simple())
    }
}

impl Store {
    /// Raises the epoch of a source and returns the new one. From now on, inserts under any other epoch are rejected;
    /// by other replicas, once they know of it.
    ///
    /// The upper half of an epoch is a counter. The lower half is random, so that two processors that take over at the
    /// same time do not write the same number. On replicas, each epoch can be followed by one other epoch only.
    ///
    /// # Errors
    /// [`StoreError::Preceded`] when another processor raised it at the same time.
    pub async fn raise_epoch(&self, src: u32) -> Result<u64, StoreError> {
        let highest = self.epoch(src).await?;
        let (_, random) = Uuid::now_v7().as_u64_pair();
        let epoch = ((highest >> 32) + 1) << 32 | (random & u64::from(u32::MAX));
        let insert = self
            .client
            .query("INSERT INTO owners (src, epoch, owner, taken_at) SELECT ?, ?, ?, now64(3)")
            .bind(src)
            .bind(epoch)
            .bind(&self.owner)
            .with_setting("async_insert", "0");
        in_time(self.once(insert, &format!("owner-{src}-{highest}")).execute()).await?;
        if self.client.is_replicated() && self.epoch(src).await? != epoch {
            return Err(StoreError::Preceded);
        }
        Ok(epoch)
    }

    /// Returns the highest epoch of a source; 0 before the first one.
    pub(crate) async fn epoch(&self, src: u32) -> Result<u64, StoreError> {
        in_time(self.client.query("SELECT max(epoch) FROM owners WHERE src = ?").bind(src).fetch_one()).await
    }

    /// Kills the inserts of a source under epochs below `epoch`, and returns how many are still running.
    ///
    /// An insert evaluates its guard after it is listed in `system.processes`, so an insert that is not listed after
    /// the epoch was raised will be rejected. An insert whose sender stopped half way waits until the server's
    /// `http_receive_timeout` and cannot be killed earlier.
    pub async fn older_inserts(&self, src: u32, epoch: u64) -> Result<u64, StoreError> {
        // Other databases of the same server may have sources of the same number.
        const OLDER: &str = "current_database = currentDatabase() AND startsWith(query_id, ?) \
                             AND toUInt64OrZero(splitByChar('-', query_id)[3]) < ?";
        let prefix = format!("clicks-{src}-");
        let kill = format!("KILL QUERY WHERE {OLDER} ASYNC");
        if let Err(error) = in_time(self.client.query(&kill).bind(&prefix).bind(epoch).execute()).await {
            tracing::debug!(%error, "cannot kill older inserts, waiting for them instead");
        }
        let count = format!("SELECT count() FROM system.processes WHERE {OLDER}");
        in_time(self.client.query(&count).bind(&prefix).bind(epoch).fetch_one()).await
    }

    /// Raises the epoch of a source and waits until no statement runs under an older one.
    pub(crate) async fn fence(&self, src: u32) -> Result<FencingToken, StoreError> {
        let epoch = self.raise_epoch(src).await?;
        self.wait_for_older_inserts(src, epoch).await?;
        Ok(FencingToken { src, epoch })
    }

    /// Like [`Store::fence`], for statements that rely on what is not stored: every replica knows the new epoch, and
    /// has the rows that were stored under older ones.
    ///
    /// # Errors
    /// Also when a replica does not answer.
    pub(crate) async fn fence_on_all(&self, src: u32) -> Result<FencingToken, StoreError> {
        let token = self.fence(src).await?;
        self.make_known_to_all(token).await?;
        Ok(token)
    }

    /// Waits until every replica knows an epoch, has the rows that were stored under older ones, and runs no statement
    /// under an older one.
    ///
    /// # Errors
    /// Also when a replica does not answer.
    pub(crate) async fn make_known_to_all(&self, token: FencingToken) -> Result<(), StoreError> {
        for wait_for in [&["owners"][..], &["clicks", "stretches", "sources"]] {
            for replica in 0..self.client.names().len() {
                let replica = Self { client: self.client.at(replica), ..self.clone() };
                replica.client.catch_up(wait_for).await?;
                replica.wait_for_older_inserts(token.src, token.epoch).await?;
            }
        }
        Ok(())
    }

    /// Waits until no statement runs under an epoch below `epoch`.
    pub(crate) async fn wait_for_older_inserts(&self, src: u32, epoch: u64) -> Result<(), StoreError> {
        while self.older_inserts(src, epoch).await? > 0 {
            sleep(OLDER_INSERTS_INTERVAL).await;
        }
        Ok(())
    }
}
