//! Every operation of the API: its method and path, who may call it, its handler, and the status of a success.

use std::sync::Arc;

use http::StatusCode;
use service::http::Route;
use service::http::route::any_of;
use warp::Filter as _;

use crate::account::sessions::member::{Member, Owner, SentByPage};
use crate::account::sessions::{devices, new_password, setup, show as session, sign_in, two_factor};
use crate::account::{audit, members, workspaces};
use crate::app::App;
use crate::resources::{clicks, conversions, imports, keys, links, live, names, stats, usage, webhooks};
use crate::web::caller::{Anyone, Caller, Editor, Writer};
use crate::web::mount::{Table, mount};
use crate::web::operation::{Operation, delete, get, patch, post, put};
use crate::web::request::Credentials;
use crate::web::{dashboard, openapi};

const OK: StatusCode = StatusCode::OK;
const CREATED: StatusCode = StatusCode::CREATED;
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
const NO_CONTENT: StatusCode = StatusCode::NO_CONTENT;

/// The operations of a workspace, for its keys and for members.
#[rustfmt::skip]
pub(crate) fn of_workspace() -> Vec<Operation> {
    vec![
        get::<Caller, _>     ("links",                                  links::list::list,                 OK),
        post::<Editor, _>    ("links",                                  links::create::create,             CREATED),
        post::<Editor, _>    ("links/bulk",                             links::bulk::bulk,                 OK),
        put::<Editor, _>     ("links/upsert",                           links::upsert::upsert,             OK),
        get::<Caller, _>     ("links/{id}",                             links::show::show,                 OK),
        patch::<Editor, _>   ("links/{id}",                             links::update::update,             OK),
        delete::<Editor, _>  ("links/{id}",                             links::delete::delete,             NO_CONTENT),
        get::<Caller, _>     ("links/{id}/qr",                          links::qr::qr,                     OK),
        get::<Caller, _>     ("links/{id}/stats",                       stats::show::show,                 OK),
        get::<Caller, _>     ("links/{id}/stats/{dimension}",           stats::breakdown::breakdown,       OK),
        get::<Caller, _>     ("links/{id}/clicks",                      clicks::list::list,                OK),
        get::<Caller, _>     ("links/{id}/conversions",                 conversions::list::list,           OK),
        get::<Caller, _>     ("links/{id}/live",                        live::stream::live,                OK),
        get::<Caller, _>     ("stats",                                  stats::show::show,                 OK),
        get::<Caller, _>     ("stats/{dimension}",                      stats::breakdown::breakdown,       OK),
        get::<Caller, _>     ("clicks",                                 clicks::list::list,                OK),
        get::<Caller, _>     ("conversions",                            conversions::list::list,           OK),
        get::<Caller, _>     ("live",                                   live::stream::live,                OK),
        get::<Writer, _>     ("webhooks",                               webhooks::list::list,              OK),
        post::<Writer, _>    ("webhooks",                               webhooks::create::create,          CREATED),
        get::<Writer, _>     ("webhooks/{id}",                          webhooks::show::show,              OK),
        patch::<Writer, _>   ("webhooks/{id}",                          webhooks::update::update,          OK),
        delete::<Writer, _>  ("webhooks/{id}",                          webhooks::delete::delete,          NO_CONTENT),
        post::<Writer, _>    ("webhooks/{id}/rotate-secret",            webhooks::rotate::rotate_secret,   OK),
        get::<Writer, _>     ("webhooks/{id}/failures",                 webhooks::failures::failures,      OK),
        get::<Writer, _>     ("webhooks/{id}/deliveries/{delivery_id}", webhooks::delivery::delivery,      OK),
        post::<Writer, _>    ("webhooks/{id}/test",                     webhooks::test::send_test,         ACCEPTED),
        post::<Writer, _>    ("webhooks/{id}/redeliver",                webhooks::redeliver::redeliver,    ACCEPTED),
        get::<Caller, _>     ("usage",                                  usage::usage,                      OK),
    ]
}

/// The operations for anyone: a click id is all that a conversion needs.
#[rustfmt::skip]
pub(crate) fn of_anyone() -> Vec<Operation> {
    vec![
        post::<Anyone, _>    ("conversions",                            conversions::create::create,       CREATED),
    ]
}

/// The operations of a workspace that only members have.
#[rustfmt::skip]
pub(crate) fn of_members() -> Vec<Operation> {
    vec![
        get::<Caller, _>     ("keys",                                   keys::list,                        OK),
        post::<Editor, _>    ("keys",                                   keys::create,                      CREATED),
        delete::<Editor, _>  ("keys/{id}",                              keys::revoke,                      NO_CONTENT),
        get::<Caller, _>     ("tags",                                   names::tags,                       OK),
        get::<Caller, _>     ("slugs/{slug}",                           names::slug,                       OK),
        get::<Caller, _>     ("sparklines",                             stats::sparklines::sparklines,     OK),
        post::<Writer, _>    ("webhooks/{id}/enable",                   webhooks::enable::enable,          OK),
        get::<Caller, _>     ("links/export",                           links::export::export,             OK),
        post::<Editor, _>    ("links/import",                           imports::receive::import,          OK),
        get::<Caller, _>     ("links/import/{id}",                      imports::report::show,             OK),
        get::<Caller, _>     ("links/import/{id}/refused",              imports::report::refused,          OK),
    ]
}

/// The operations of the dashboard that belong to no workspace.
#[rustfmt::skip]
pub(crate) fn of_sessions() -> Vec<Operation> {
    vec![
        get::<Anyone, _>     ("setup",                                  setup::is_needed,                  OK),
        post::<SentByPage, _>("setup",                                  setup::set_up,                     OK),
        post::<SentByPage, _>("sign-in",                                sign_in::sign_in,                  OK),
        post::<SentByPage, _>("sign-out",                               sign_in::sign_out,                 NO_CONTENT),
        post::<Member, _>    ("sign-out-everywhere",                    sign_in::sign_out_everywhere,      NO_CONTENT),
        get::<Member, _>     ("session",                                session::show,                     OK),
        post::<Member, _>    ("password",                               new_password::change,              NO_CONTENT),
        get::<Member, _>     ("sessions",                               devices::list,                     OK),
        delete::<Member, _>  ("sessions",                               devices::end_others,               NO_CONTENT),
        delete::<Member, _>  ("sessions/{id}",                          devices::end,                      NO_CONTENT),
        post::<Member, _>    ("two-factor",                             two_factor::begin,                 OK),
        get::<Member, _>     ("two-factor/qr",                          two_factor::qr,                    OK),
        post::<Member, _>    ("two-factor/confirm",                     two_factor::confirm,               OK),
        delete::<Member, _>  ("two-factor",                             two_factor::remove,                NO_CONTENT),
        get::<Owner, _>      ("audit",                                  audit::list,                       OK),
        get::<Member, _>     ("members",                                members::list::list,               OK),
        post::<Owner, _>     ("members",                                members::create::create,           CREATED),
        patch::<Owner, _>    ("members/{id}",                           members::role::set_role,           OK),
        delete::<Owner, _>   ("members/{id}",                           members::remove::remove,           NO_CONTENT),
        delete::<Owner, _>   ("members/{id}/two-factor",                members::reset::two_factor,        NO_CONTENT),
        get::<Member, _>     ("workspaces",                             workspaces::list,                  OK),
        post::<Owner, _>     ("workspaces",                             workspaces::create,                CREATED),
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
        dashboard::routes(),
    ])
}
