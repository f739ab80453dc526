//! The subject of a request for statistics or clicks.

use chrono::{DateTime, Utc};
use schemas::id::LinkId;
use service::http::ApiError;
use uuid::Uuid;

use crate::app::App;
use crate::resources::links::object;
use crate::store::clicks::{Classes, Of, Question};
use crate::web::caller::Caller;
use crate::web::dates::Window;

/// The clicks of a link or a workspace, of some classes, in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) workspace: Uuid,
    /// The link; `None` is the whole workspace.
    pub(crate) link: Option<Uuid>,
    pub(crate) classes: Classes,
    pub(crate) window: Window,
    /// The moment of the request.
    pub(crate) now: DateTime<Utc>,
}

/// The parameters of a subject.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubjectParameters<'a> {
    pub(crate) start_date: Option<&'a str>,
    pub(crate) end_date: Option<&'a str>,
    pub(crate) class: Option<&'a str>,
    /// The default classes.
    pub(crate) otherwise: Classes,
}

impl Subject {
    /// Parses the parameters and checks that the link is the caller's.
    ///
    /// # Errors
    /// 400 that names the parameter, 404 for a missing link or one of another workspace.
    pub(crate) async fn read(
        app: &App,
        caller: &Caller,
        link: Option<LinkId>,
        asked: SubjectParameters<'_>,
    ) -> Result<Self, ApiError> {
        let now = schemas::time::to_millis(Utc::now());
        let retention = app.plans.retention_days(caller.plan);
        let window = Window::parse(asked.start_date, asked.end_date, retention, now)?;
        let classes = asked.class.map_or(Ok(asked.otherwise), Classes::parse)?;
        let link = match link {
            Some(id) => Some(object::require(app, caller.workspace, id).await?.id),
            None => None,
        };
        Ok(Self { workspace: caller.workspace, link, classes, window, now })
    }

    /// Returns the question for the store.
    pub(crate) fn question(&self) -> Question<'_> {
        Question {
            workspace: self.workspace,
            of: self.link.as_ref().map_or(Of::Workspace, |link| Of::Links(std::slice::from_ref(link))),
            classes: self.classes,
            window: self.window.into(),
            taken_until: None,
        }
    }

    /// Returns the end of the window for the answer: an open one ends now.
    pub(crate) fn end_date(&self) -> DateTime<Utc> {
        self.window.end.unwrap_or(self.window.start.max(self.now))
    }
}
