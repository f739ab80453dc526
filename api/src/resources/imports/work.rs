//! A running import: its rows in batches, each in one transaction.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use service::http::ApiError;
use sqlx::PgConnection;
use uuid::Uuid;

use super::columns::Columns;
use super::rows::{Next, Row, Rows};
use crate::account::quota::LinkQuota;
use crate::app::App;
use crate::error::{database, retry_deadlocks};
use crate::resources::links::create;
use crate::resources::links::fields::Checked;
use crate::resources::links::object::{external_id_taken, slug_taken};
use crate::store::imports::{Import, Outcome, RejectedRow};
use crate::store::{imports, links, members};
use crate::web::caller::Caller;

/// Rows of a transaction, and transactions of a turn, which takes some tenths of a second.
const BATCH: usize = 500;
const TURN: usize = 4;

/// Rows read in one turn. A resumed import first reads past the rows that are done, which may be a million.
const MOST_READ: usize = 20_000;

/// Most rejected rows, at which an import stops.
const MAX_REJECTED: i64 = 10_000;

/// Most rows of a file.
const MAX_ROWS: i64 = 1_000_000;

/// An import that only this process runs.
pub(super) struct Work {
    import: Import,
    file: File,
    /// `None` if the file no longer has a header: nothing is left to do.
    columns: Option<Columns>,
    /// Rows read so far, without the header.
    read: i64,
    dry_run_names: DryRunNames,
}

impl Work {
    /// Starts an import, or resumes it at the first row that is not done.
    pub(super) async fn begin(connection: &mut PgConnection, mut import: Import) -> sqlx::Result<Self> {
        if import.is_dry_run && import.created + import.failed > 0 {
            // The names that earlier rows would have taken are unknown.
            imports::restart(connection, import.id).await?;
            (import.created, import.failed) = (0, 0);
        }
        let mut file = File::new(import.id);
        let columns = match file.next(connection).await? {
            Some((Row { cells: Ok(header), .. }, _)) => Columns::of(&header).ok(),
            _ => None,
        };
        Ok(Self { import, file, columns, read: 0, dry_run_names: DryRunNames::default() })
    }

    /// Imports some rows; true when all are done.
    ///
    /// After an error the import must be started again.
    pub(super) async fn turn(&mut self, app: &App, connection: &mut PgConnection) -> anyhow::Result<bool> {
        for _ in 0..TURN {
            let (batch, is_end) = self.read_batch(app, connection).await?;
            let progress = match &batch[..] {
                [] => Progress::Done,
                batch => do_batch(app, &mut self.import, batch, &mut self.dry_run_names).await?,
            };
            let is_stopped = match progress {
                Progress::Done => self.import.failed >= MAX_REJECTED,
                Progress::Stopped => true,
                Progress::Elsewhere => return Ok(true),
            };
            if is_end || is_stopped {
                imports::finish(connection, self.import.id).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the next rows; true with the last ones.
    async fn read_batch(
        &mut self,
        app: &App,
        connection: &mut PgConnection,
    ) -> sqlx::Result<(Vec<Entry>, bool)> {
        let mut batch = Vec::with_capacity(BATCH);
        let Some(columns) = &self.columns else { return Ok((batch, true)) };
        let done = self.import.created + self.import.failed;
        // No more than may still be rejected.
        let size = usize::try_from(MAX_REJECTED - self.import.failed).unwrap_or(0).min(BATCH);
        for _ in 0..MOST_READ {
            let Some((row, mut is_end)) = self.file.next(connection).await? else {
                return Ok((batch, true));
            };
            self.read += 1;
            let is_too_many = self.read > MAX_ROWS;
            is_end |= is_too_many;
            if self.read > done {
                let link = if is_too_many {
                    Err(ApiError::payload_too_large(
                        "The file has more than a million rows. The rest of it was not imported.",
                    ))
                } else {
                    read(app, columns, row.cells)
                };
                batch.push(Entry { line: row.line, content: row.content, link });
            }
            if is_end || batch.len() == size {
                return Ok((batch, is_end));
            }
        }
        Ok((batch, false))
    }
}

/// A row, and its link or error.
struct Entry {
    line: i64,
    content: String,
    link: Result<Checked, ApiError>,
}

/// The rows of a stored file.
struct File {
    import: Uuid,
    next_piece: i32,
    rows: Rows,
}

impl File {
    fn new(import: Uuid) -> Self {
        Self { import, next_piece: 0, rows: Rows::new() }
    }

    /// Returns the next row, and whether the rest is not CSV; `None` at the end.
    async fn next(&mut self, connection: &mut PgConnection) -> sqlx::Result<Option<(Row, bool)>> {
        loop {
            match self.rows.next() {
                Next::Row(row) => return Ok(Some((row, false))),
                Next::Broken(row) => return Ok(Some((row, true))),
                Next::End => return Ok(None),
                Next::More => match imports::piece(connection, self.import, self.next_piece).await? {
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

fn read(app: &App, columns: &Columns, cells: Result<Vec<String>, &'static str>) -> Result<Checked, ApiError> {
    let cells = cells.map_err(|fault| ApiError::bad_request(format!("The row {fault}.")))?;
    let (fields, faults) = columns.fields(&cells);
    fields.check_new_with(faults, &app.destinations)
}

/// Hashes of the names that a dry run would have taken: its earlier batches inserted nothing that later ones could
/// conflict with.
#[derive(Default)]
struct DryRunNames {
    hash: RandomState,
    names: HashSet<u64>,
}

impl DryRunNames {
    fn names(&self, row: &Checked) -> [Option<u64>; 2] {
        let external_id = row.external_id.as_ref().and_then(Option::as_ref);
        [
            row.slug.as_ref().map(|slug| self.hash.hash_one(("slug", slug))),
            external_id.map(|id| self.hash.hash_one(("id", id))),
        ]
    }

    /// Rejects a row whose names an earlier batch would have taken.
    fn check(&self, row: &Checked) -> Result<(), ApiError> {
        let [slug, external_id] =
            self.names(row).map(|name| name.is_some_and(|name| self.names.contains(&name)));
        match (slug, external_id) {
            (true, _) => Err(slug_taken(row.slug.as_deref().unwrap_or_default())),
            (_, true) => Err(external_id_taken()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, row: &Checked) {
        self.names.extend(self.names(row).into_iter().flatten());
    }
}

/// The outcome of a batch.
enum Progress {
    Done,
    /// The member may no longer change links.
    Stopped,
    /// Another process has done it.
    Elsewhere,
}

/// Imports a batch of rows and records it.
async fn do_batch(
    app: &App,
    import: &mut Import,
    batch: &[Entry],
    dry_run_names: &mut DryRunNames,
) -> Result<Progress, ApiError> {
    let (outcome, created, progress) = {
        let (import, dry_run_names) = (&*import, &*dry_run_names);
        let done = retry_deadlocks(|| batch_once(app, import, batch, dry_run_names)).await?;
        let Some(done) = done else { return Ok(Progress::Elsewhere) };
        done
    };
    if import.is_dry_run {
        created
            .iter()
            .filter_map(|place| batch[*place].link.as_ref().ok())
            .for_each(|row| dry_run_names.take(row));
    }
    import.created += outcome.created;
    import.failed += outcome.failed;
    Ok(progress)
}

/// Imports a batch in one transaction. Returns the outcome, the places of created links, and whether the import goes
/// on; `None` when another process has done the batch.
///
/// Once its member may no longer change links, the next row is rejected for this reason, and the import stops.
async fn batch_once(
    app: &App,
    import: &Import,
    batch: &[Entry],
    dry_run_names: &DryRunNames,
) -> Result<Option<(Outcome, Vec<usize>, Progress)>, ApiError> {
    let caller = Caller::of_import(import.workspace_id, import.account_id, import.user_id, import.plan);
    let (mut transaction, mut quota) = LinkQuota::begin(app, &caller).await?;
    let may_go_on = members::may_change_links(&mut transaction, import.user_id).await.map_err(database)?;
    let batch = if may_go_on { batch } else { &batch[..1] };
    if import.is_dry_run {
        quota.assume(import.created);
    }
    links::queue_for_names(
        &mut transaction,
        caller.workspace,
        batch.iter().flat_map(|row| &row.link).map(Checked::names),
    )
    .await
    .map_err(database)?;
    let done = import.created + import.failed;
    let readable: Vec<Result<&Checked, ApiError>> = batch
        .iter()
        .map(|row| {
            if !may_go_on {
                return Err(ApiError::forbidden(
                    "The import stopped here, because the member who started it may no longer change links.",
                ));
            }
            row.link.as_ref().map_err(Clone::clone).and_then(|row| dry_run_names.check(row).map(|()| row))
        })
        .collect();
    let entries: Vec<&Checked> = readable.iter().flatten().copied().collect();
    let mut made =
        create::insert_all(&mut transaction, &entries, &caller, &mut quota, app).await?.into_iter();
    let (mut outcome, mut created) = (Outcome::default(), Vec::new());
    for (place, row) in readable.into_iter().enumerate() {
        // Every readable row has an outcome.
        match row.and_then(|_| made.next().unwrap_or(Ok(()))) {
            Ok(()) => {
                outcome.created += 1;
                created.push(place);
            }
            Err(error) => {
                outcome.failed += 1;
                let Entry { line: row, ref content, .. } = batch[place];
                let mut message = error.problems();
                if may_go_on && import.failed + outcome.failed == MAX_REJECTED {
                    message += " The import stopped here, because 10,000 rows were rejected.";
                }
                // Statuses have three digits.
                let status = error.status().as_u16().cast_signed();
                outcome.rejected_rows.push(RejectedRow { row, status, message, content: content.clone() });
            }
        }
    }
    if import.is_dry_run {
        transaction.rollback().await.map_err(database)?;
        transaction = app.pool.begin().await.map_err(database)?;
    }
    let advanced = imports::advance(&mut transaction, import.id, done, &outcome).await.map_err(database)?;
    if !advanced {
        return Ok(None);
    }
    transaction.commit().await.map_err(database)?;
    let progress = if may_go_on { Progress::Done } else { Progress::Stopped };
    Ok(Some((outcome, created, progress)))
}
