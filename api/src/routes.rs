//! Every operation of the API: its method and path, who may call it, its handler, and the status of a success.

use std::sync::Arc;

use http::StatusCode;
use service::http::Route;
use service::http::route::any_of;
use warp::Filter as _;

use crate::auth::{Caller, Editor, Writer};
use crate::limits::Anyone;
use crate::sessions::{Member, Owner, SentByPage};
use crate::web::mount::{Table, mount};
use crate::web::operation::{Operation, delete, get, patch, post, put};
use crate::web::request::Credentials;
use crate::{App, clicks, conversions, dashboard, links, live, members, openapi, sessions};
use crate::{stats, usage, webhooks, workspaces};

const OK: StatusCode = StatusCode::OK;
const CREATED: StatusCode = StatusCode::CREATED;
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
const NO_CONTENT: StatusCode = StatusCode::NO_CONTENT;

/// The operations of a workspace, for its keys and for members.
#[rustfmt::skip]
pub(crate) fn of_workspace() -> Vec<Operation> {
    vec![
        get::<Caller, _>   ("links",                                     links::list,                 OK),
        post::<Editor, _>  ("links",                                     links::create,               CREATED),
        post::<Editor, _>  ("links/bulk",                                links::bulk,                 OK),
        put::<Editor, _>   ("links/upsert",                              links::upsert,               OK),
        get::<Caller, _>   ("links/{id}",                                links::show,                 OK),
        patch::<Editor, _> ("links/{id}",                                links::update,               OK),
        delete::<Editor, _>("links/{id}",                                links::delete,               NO_CONTENT),
        get::<Caller, _>   ("links/{id}/qr",                             links::qr,                   OK),
        get::<Caller, _>   ("links/{id}/stats",                          stats::show,                 OK),
        get::<Caller, _>   ("links/{id}/stats/{dimension}",              stats::breakdown,            OK),
        get::<Caller, _>   ("links/{id}/clicks",                         clicks::clicks,              OK),
        get::<Caller, _>   ("links/{id}/conversions",                    conversions::list,           OK),
        get::<Caller, _>   ("links/{id}/live",                           live::live,                  OK),
        get::<Caller, _>   ("stats",                                     stats::show,                 OK),
        get::<Caller, _>   ("stats/{dimension}",                         stats::breakdown,            OK),
        get::<Caller, _>   ("clicks",                                    clicks::clicks,              OK),
        get::<Caller, _>   ("conversions",                               conversions::list,           OK),
        get::<Caller, _>   ("live",                                      live::live,                  OK),
        get::<Writer, _>   ("webhooks",                                  webhooks::list,              OK),
        post::<Writer, _>  ("webhooks",                                  webhooks::create,            CREATED),
        get::<Writer, _>   ("webhooks/{id}",                             webhooks::show,              OK),
        patch::<Writer, _> ("webhooks/{id}",                             webhooks::update,            OK),
        delete::<Writer, _>("webhooks/{id}",                             webhooks::delete,            NO_CONTENT),
        post::<Writer, _>  ("webhooks/{id}/rotate-secret",               webhooks::rotate_secret,     OK),
        get::<Writer, _>   ("webhooks/{id}/failures",                    webhooks::failures,          OK),
        get::<Writer, _>   ("webhooks/{id}/deliveries/{delivery_id}",    webhooks::delivery,          OK),
        post::<Writer, _>  ("webhooks/{id}/test",                        webhooks::send_test,         ACCEPTED),
        post::<Writer, _>  ("webhooks/{id}/redeliver",                   webhooks::redeliver,         ACCEPTED),
        get::<Caller, _>   ("usage",                                     usage::usage,                OK),
    ]
}

/// The operations for anyone: a click id is all that a conversion needs.
#[rustfmt::skip]
pub(crate) fn of_anyone() -> Vec<Operation> {
    vec![
        post::<Anyone, _>  ("conversions",                               conversions::create,         CREATED),
    ]
}

/// The operations of a workspace that only members have.
#[rustfmt::skip]
pub(crate) fn of_members() -> Vec<Operation> {
    vec![
        get::<Caller, _>   ("keys",                                      dashboard::keys::list,       OK),
        post::<Caller, _>  ("keys",                                      dashboard::keys::create,     CREATED),
        delete::<Caller, _>("keys/{id}",                                 dashboard::keys::revoke,     NO_CONTENT),
        get::<Caller, _>   ("tags",                                      dashboard::names::tags,      OK),
        get::<Caller, _>   ("slugs/{slug}",                              dashboard::names::slug,      OK),
        get::<Caller, _>   ("sparklines",                                stats::sparklines,           OK),
        post::<Writer, _>  ("webhooks/{id}/enable",                      webhooks::enable,            OK),
        get::<Caller, _>   ("links/export",                              links::export,               OK),
        post::<Editor, _>  ("links/import",                              links::import,               OK),
        get::<Caller, _>   ("links/import/{id}",                         links::show_import,          OK),
        get::<Caller, _>   ("links/import/{id}/refused",                 links::refused_of_import,    OK),
    ]
}

/// The operations of the dashboard that belong to no workspace.
#[rustfmt::skip]
pub(crate) fn of_sessions() -> Vec<Operation> {
    vec![
        get::<Anyone, _>     ("setup",                                   sessions::is_needed,         OK),
        post::<SentByPage, _>("setup",                                   sessions::set_up,            OK),
        post::<SentByPage, _>("sign-in",                                 sessions::sign_in,           OK),
        post::<SentByPage, _>("sign-out",                                sessions::sign_out,          NO_CONTENT),
        post::<Member, _>    ("sign-out-everywhere",                     sessions::sign_out_everywhere, NO_CONTENT),
        get::<Member, _>     ("session",                                 sessions::show,              OK),
        get::<Member, _>     ("members",                                 members::list,               OK),
        post::<Owner, _>     ("members",                                 members::create,             CREATED),
        delete::<Owner, _>   ("members/{id}",                            members::remove,             NO_CONTENT),
        get::<Member, _>     ("workspaces",                              workspaces::list,            OK),
        post::<Owner, _>     ("workspaces",                              workspaces::create,          CREATED),
    ]
}

/// The API under `/api/v1` and, for ever the same, under `/api`; and the dashboard under `/app`.
pub(crate) fn routes(app: &App) -> Route {
    let public = Arc::new(Table::new(of_workspace().into_iter().chain(of_anyone())));
    let workspace = Arc::new(Table::new(of_workspace().into_iter().chain(of_members())));
    let sessions = Arc::new(Table::new(of_sessions()));
    any_of([
        mount(warp::path!("api" / "v1" / ..).map(|| Credentials::Key), &public, app),
        mount(warp::path!("api" / ..).map(|| Credentials::Key), &public, app),
        warp::path!("api" / "v1" / ..).and(openapi::openapi()).boxed(),
        warp::path!("api" / ..).and(openapi::openapi()).boxed(),
        mount(
            warp::path!("app" / "api" / "workspaces" / String / ..).map(Credentials::SessionIn),
            &workspace,
            app,
        ),
        mount(warp::path!("app" / "api" / ..).map(|| Credentials::Session), &sessions, app),
        dashboard::page::routes(),
    ])
}
