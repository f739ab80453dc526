//! Working imports off.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use service::http::ApiError;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::super::fields::Checked;
use super::super::room::Room;
use super::super::{create, store as links};
use super::columns::Columns;
use super::report::Refusal;
use super::rows::{Next, Row, Rows};
use super::store::{self, Import, Outcome};
use crate::App;
use crate::auth::Caller;
use crate::error::{database, despite_deadlocks};

/// Rows of one transaction.
const BATCH: usize = 500;

/// Most rows of a file.
const MAX_ROWS: i64 = 1_000_000;

/// Refused rows that a report tells.
const TOLD: i64 = 200;

/// The advisory locks of imports that are worked off are pairs of this, "imp" as ASCII, and a number of each import.
const LOCKS: i32 = 0x69_6d70;

/// How long to wait for a new import where nobody says that there is one: it may have come to another instance.
const PAUSE: Duration = Duration::from_secs(2);

/// How often old reports are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

/// Works imports off until shutdown; failures are logged and tried again.
pub(crate) async fn work(app: App) {
    let mut swept: Option<Instant> = None;
    while !app.shutdown.requested() {
        let is_due = swept.is_none_or(|at| at.elapsed() > SWEEP_INTERVAL);
        let outcome = tokio::select! {
            outcome = work_once(&app, is_due) => outcome,
            () = app.shutdown.wait() => return,
        };
        match outcome {
            Ok(()) if is_due => swept = Some(Instant::now()),
            Ok(()) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "Imports of links do not go on; trying again");
            }
        }
        tokio::select! {
            () = app.imports.notified() => {}
            () = tokio::time::sleep(PAUSE) => {}
            () = app.shutdown.wait() => return,
        }
    }
}

async fn work_once(app: &App, is_due: bool) -> anyhow::Result<()> {
    let mut pooled = app.pool.acquire().await?;
    if is_due {
        // Imports go on without it.
        if let Err(error) = store::sweep(&mut pooled).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "Old imports of links stay for now");
        }
    }
    let waiting = store::waiting(&mut pooled).await?;
    if waiting.is_empty() {
        return Ok(());
    }
    // A connection of its own: the locks end with it, however this ends.
    let mut connection = pooled.detach();
    let worked = work_all(app, &mut connection, waiting).await;
    connection.close().await?;
    worked
}

async fn work_all(app: &App, connection: &mut PgConnection, waiting: Vec<Uuid>) -> anyhow::Result<()> {
    for id in waiting {
        let lock = (id.as_u128() & 0xffff_ffff) as u32;
        let is_free: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCKS)
            .bind(lock.cast_signed())
            .fetch_one(&mut *connection)
            .await?;
        // Another instance is at it.
        if !is_free {
            continue;
        }
        if let Some(import) = store::find(connection, id).await? {
            work_off(app, connection, import).await.with_context(|| format!("import {id}"))?;
        }
        sqlx::query("SELECT pg_advisory_unlock($1, $2)")
            .bind(LOCKS)
            .bind(lock.cast_signed())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Works an import off, from the first row that is not done.
async fn work_off(app: &App, connection: &mut PgConnection, mut import: Import) -> anyhow::Result<()> {
    if import.is_dry_run && import.created + import.failed > 0 {
        // What the rows so far would have taken is not known any more.
        store::restart(connection, import.id).await?;
        (import.created, import.failed) = (0, 0);
    }
    let mut file = File::new(import.id);
    let columns = match file.next(connection).await? {
        Some(Ok(Ok(header))) => Columns::of(&header).ok(),
        _ => None,
    };
    let mut would_be = WouldBe::default();
    let mut place = 0;
    while let Some(columns) = &columns {
        let mut batch = Vec::with_capacity(BATCH);
        let mut is_end = false;
        while batch.len() < BATCH && !is_end {
            let row = match file.next(connection).await? {
                None => {
                    is_end = true;
                    break;
                }
                Some(Ok(row)) => row,
                Some(Err(fault)) => {
                    is_end = true;
                    Err(fault)
                }
            };
            place += 1;
            if place > MAX_ROWS {
                is_end = true;
                batch.push(Err(ApiError::payload_too_large(
                    "The rest of the file was not read: it has more than a million rows",
                )));
            } else if place > import.created + import.failed {
                batch.push(read(app, columns, row));
            }
        }
        if !batch.is_empty() && !do_batch(app, &mut import, &batch, &mut would_be).await? {
            // Somebody else has gone on with it.
            return Ok(());
        }
        if is_end {
            break;
        }
    }
    store::finish(connection, import.id).await?;
    Ok(())
}

/// The rows of a file that is in the database.
struct File {
    import: Uuid,
    next_piece: i32,
    rows: Rows,
}

impl File {
    fn new(import: Uuid) -> Self {
        Self { import, next_piece: 0, rows: Rows::new() }
    }

    /// The next row; `Err` where the rest is no CSV, none at the end.
    async fn next(
        &mut self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Option<Result<Row, &'static str>>> {
        loop {
            match self.rows.next() {
                Next::Row(row) => return Ok(Some(Ok(row))),
                Next::Broken(fault) => return Ok(Some(Err(fault))),
                Next::End => return Ok(None),
                Next::More => match store::piece(connection, self.import, self.next_piece).await? {
                    Some(bytes) => {
                        self.rows.push(&bytes);
                        self.next_piece += 1;
                    }
                    None => self.rows.end(),
                },
            }
        }
    }
}

fn read(app: &App, columns: &Columns, row: Row) -> Result<Checked, ApiError> {
    let cells = row.map_err(|fault| ApiError::bad_request(format!("The row {fault}")))?;
    columns.fields(&cells)?.check_new(&app.public_url)
}

/// What a dry run would have taken so far, by hashes: links of earlier batches are not there for later ones to meet.
#[derive(Default)]
struct WouldBe {
    hash: RandomState,
    names: HashSet<u64>,
}

impl WouldBe {
    fn names(&self, row: &Checked) -> [Option<u64>; 2] {
        let external_id = row.external_id.as_ref().and_then(Option::as_ref);
        [
            row.slug.as_ref().map(|slug| self.hash.hash_one(("slug", slug))),
            external_id.map(|id| self.hash.hash_one(("id", id))),
        ]
    }

    /// Refuses a row whose names an earlier batch would have taken.
    fn check(&self, row: &Checked) -> Result<(), ApiError> {
        let [slug, external_id] =
            self.names(row).map(|name| name.is_some_and(|name| self.names.contains(&name)));
        match (slug, external_id) {
            (true, _) => Err(super::super::slug_taken(row.slug.as_deref().unwrap_or_default())),
            (_, true) => Err(super::super::external_id_taken()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, row: &Checked) {
        self.names.extend(self.names(row).into_iter().flatten());
    }
}

/// Does a batch of rows, and notes that they are done; false when somebody else has done so.
async fn do_batch(
    app: &App,
    import: &mut Import,
    batch: &[Result<Checked, ApiError>],
    would_be: &mut WouldBe,
) -> Result<bool, ApiError> {
    let (outcome, created) = {
        let (import, would_be) = (&*import, &*would_be);
        let done = despite_deadlocks(|| batch_once(app, import, batch, would_be)).await?;
        let Some(done) = done else { return Ok(false) };
        done
    };
    if import.is_dry_run {
        created.iter().filter_map(|place| batch[*place].as_ref().ok()).for_each(|row| would_be.take(row));
    }
    import.created += outcome.created;
    import.failed += outcome.failed;
    Ok(true)
}

/// What the rows came to, and the places of those that became links.
async fn batch_once(
    app: &App,
    import: &Import,
    batch: &[Result<Checked, ApiError>],
    would_be: &WouldBe,
) -> Result<Option<(Outcome, Vec<usize>)>, ApiError> {
    let caller = Caller::of_import(import.workspace_id, import.account_id, import.user_id, import.plan);
    let (mut transaction, mut room) = Room::begin(app, &caller).await?;
    if import.is_dry_run {
        room.assume(import.created);
    }
    links::queue_for_names(&mut transaction, caller.workspace, batch.iter().flatten())
        .await
        .map_err(database)?;
    let done = import.created + import.failed;
    let readable: Vec<Result<&Checked, ApiError>> = batch
        .iter()
        .map(|row| row.as_ref().map_err(Clone::clone).and_then(|row| would_be.check(row).map(|()| row)))
        .collect();
    let entries: Vec<&Checked> = readable.iter().flatten().copied().collect();
    let mut made = create::insert_all(&mut transaction, &entries, &caller, &mut room, app).await?.into_iter();
    let (mut outcome, mut created) = (Outcome::default(), Vec::new());
    for (place, row) in readable.into_iter().enumerate() {
        // There is an outcome of each that could be read.
        match row.and_then(|_| made.next().unwrap_or(Ok(()))) {
            Ok(()) => {
                outcome.created += 1;
                created.push(place);
            }
            Err(error) => {
                outcome.failed += 1;
                if import.failed + outcome.failed <= TOLD {
                    let row = done + place as i64 + 1;
                    let message = error.message().to_owned();
                    outcome.refusals.push(Refusal { row, status: error.status().as_u16(), message });
                }
            }
        }
    }
    if import.is_dry_run {
        transaction.rollback().await.map_err(database)?;
        transaction = app.pool.begin().await.map_err(database)?;
    }
    let advanced = store::advance(&mut transaction, import.id, done, &outcome).await.map_err(database)?;
    if !advanced {
        return Ok(None);
    }
    transaction.commit().await.map_err(database)?;
    Ok(Some((outcome, created)))
}
