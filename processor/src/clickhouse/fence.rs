//! Who may write rows of a source: the holder of its highest epoch.

use std::time::Duration;

use schemas::clickhouse::epoch_guard;
use tokio::time::sleep;
use uuid::Uuid;

use super::{Store, StoreError, in_time};

/// How often older statements are looked for while they are waited for.
pub(crate) const WAIT_OUT_INTERVAL: Duration = Duration::from_millis(100);

/// Under whose epoch a statement writes: one that is not the highest any more is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The source.
    pub src: u32,
    /// The epoch.
    pub epoch: u64,
}

impl Right {
    /// The condition under which a statement is let through.
    pub(crate) fn guard(self) -> String {
        epoch_guard(self.src, self.epoch)
    }

    /// A name by which [`Store::older_inserts`] finds the statement.
    pub(crate) fn statement_id(self) -> String {
        format!("clicks-{}-{}-{}", self.src, self.epoch, Uuid::now_v7().simple())
    }
}

impl Store {
    /// Takes the source over: from now on inserts under any other epoch are refused.
    ///
    /// The upper half of an epoch counts and the lower half is random, because two processors that take over at
    /// the same time would else both write, and then both hold, the same number.
    pub async fn raise_epoch(&self, src: u32) -> Result<u64, StoreError> {
        let highest: u64 =
            in_time(self.client.query("SELECT max(epoch) FROM owners WHERE src = ?").bind(src).fetch_one())
                .await?;
        let (_, random) = Uuid::now_v7().as_u64_pair();
        let epoch = ((highest >> 32) + 1) << 32 | (random & u64::from(u32::MAX));
        let insert = self
            .client
            .query("INSERT INTO owners (src, epoch, owner, taken_at) SELECT ?, ?, ?, now64(3)")
            .bind(src)
            .bind(epoch)
            .bind(&self.owner)
            .with_setting("async_insert", "0");
        in_time(insert.execute()).await?;
        Ok(epoch)
    }

    /// Kills the inserts of a source under epochs before `epoch`, and returns how many are still running.
    ///
    /// An insert reads its guard's epoch after it is listed in `system.processes`, so one that is not listed after
    /// the epoch was raised is refused. One whose sender has stopped half way listens for more until the server's
    /// `http_receive_timeout`, and cannot be killed earlier.
    pub async fn older_inserts(&self, src: u32, epoch: u64) -> Result<u64, StoreError> {
        // Other databases of the same server have the same sources.
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

    /// Takes a source from whoever has it: when this returns, nobody writes under an older epoch any more.
    pub(crate) async fn fence(&self, src: u32) -> Result<Right, StoreError> {
        let epoch = self.raise_epoch(src).await?;
        self.wait_out(src, epoch).await?;
        Ok(Right { src, epoch })
    }

    /// Waits until no statement under an epoch before `epoch` is running.
    pub(crate) async fn wait_out(&self, src: u32, epoch: u64) -> Result<(), StoreError> {
        while self.older_inserts(src, epoch).await? > 0 {
            sleep(WAIT_OUT_INTERVAL).await;
        }
        Ok(())
    }
}
