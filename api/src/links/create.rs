//! `POST /links`

use chrono::Utc;
use schemas::message::{ForwardQuery, LinkEventKind};
use service::http::ApiError;
use uuid::Uuid;

use super::fields::{Checked, Fields};
use super::store::{self, Cap, LinkRow, Told};
use super::{FullLink, LinkObject, slug};
use crate::App;
use crate::auth::Writer;
use crate::error::{database, violates};
use crate::faults::Faults;

/// How often a generated slug is drawn again. With a million links in use a draw collides once in a million.
const DRAWS: usize = 8;

/// Creates a link and answers with it; its URL goes into `Location`.
pub(crate) async fn create(Writer(caller): Writer, fields: Fields, app: App) -> Result<Created, ApiError> {
    let checked = fields.check(&app.public_url)?;
    let mut faults = Faults::default();
    faults.note("name", checked.name.as_ref().map(|_| ()).ok_or("is required"));
    faults.note("destination", checked.destination.as_ref().map(|_| ()).ok_or("is required"));
    faults.into_result()?;

    let given = checked.slug.clone();
    let mut row = new_row(&checked, caller.workspace, caller.user);
    for _ in 0..DRAWS {
        row.slug = given.clone().unwrap_or_else(|| slug::draw(&mut rand::rng()));
        let object = LinkObject::new(&row, &app);
        let told = Told { kind: LinkEventKind::Created, data: object.event_data(None) };
        let cap = caller.plan.link_cap().map(|links| Cap { account: caller.account, links });
        match store::insert(&app.pool, &row, cap, told).await {
            Ok(true) => return Ok(Created(FullLink::unclicked(object))),
            Ok(false) => {
                return Err(ApiError::plan_limit(format!(
                    "The {} plan has {} links",
                    caller.plan,
                    caller.plan.link_cap().unwrap_or_default()
                )));
            }
            Err(error) if violates(&error, "links_slug") && given.is_none() => {}
            Err(error) if violates(&error, "links_slug") => return Err(super::slug_taken(&row.slug)),
            Err(error) if violates(&error, "links_external_id") => {
                return Err(ApiError::external_id_taken(
                    "Another link of this workspace has this external_id",
                ));
            }
            Err(error) => return Err(database(error)),
        }
    }
    Err(ApiError::internal(NoFreeSlug))
}

/// A link that was created.
pub(crate) struct Created(FullLink);

impl Created {
    /// The link.
    pub(crate) fn link(&self) -> &FullLink {
        &self.0
    }

    /// The path of the link for `Location`.
    pub(crate) fn location(&self) -> String {
        format!("/api/v1/links/{}", self.0.link.id)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no free slug in {DRAWS} draws")]
struct NoFreeSlug;

fn new_row(checked: &Checked, workspace: Uuid, user: Uuid) -> LinkRow {
    let now = schemas::time::to_millis(Utc::now());
    LinkRow {
        id: Uuid::now_v7(),
        workspace_id: workspace,
        user_id: user,
        slug: String::new(),
        name: checked.name.clone().unwrap_or_default(),
        destination: checked.destination.clone().unwrap_or_default(),
        is_active: checked.is_active.unwrap_or(true),
        is_locked: false,
        redirect_status: checked.redirect_status.unwrap_or(302),
        forward_query: checked.forward_query.unwrap_or(ForwardQuery::Append).as_str().to_owned(),
        append_click_id: checked.append_click_id.unwrap_or(true),
        expires_at: checked.expires_at.flatten(),
        external_id: checked.external_id.clone().flatten(),
        tags: checked.tags.clone().unwrap_or_default(),
        revision: 1,
        created_at: now,
        updated_at: now,
    }
}
