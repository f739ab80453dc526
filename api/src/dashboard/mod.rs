//! The dashboard, below `/app`: its page, and the session routes that the page asks.
//!
//! Below `/app/api/workspaces/{id}` are the operations of the public API, the very same routes, and a few more.

mod keys;
mod names;
mod page;
mod store;

use std::sync::Arc;

use http::header::{CONTENT_TYPE, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};
use service::http::route::any_of;
use service::http::{ApiError, BODY_LIMIT, Route, json, json_body, query};
use warp::path::Tail;
use warp::reply::Response;
use warp::{Filter, Rejection, Reply as _};

use crate::App;
use crate::auth::{caller, editor, writer};
use crate::idempotency::idempotency_key;
use crate::limits::within_address_limit;
use crate::routes::{answer, known, no_content, with};
use crate::sessions::{self, Cookie, SignedIn, member, own_page, owner, presented};
use crate::{links, members, stats, webhooks, workspaces};
use page::Page;

/// Whether a path is the dashboard's, or leads to it.
pub(crate) fn is_at(path: &str) -> bool {
    path == "/" || path.strip_prefix("/app").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Everything below `/app`, and the way there; `of_workspace` are the operations that a key has too.
pub(crate) fn routes(app: &App, of_workspace: Route) -> Route {
    let only_here = any_of([
        list_keys(app),
        create_key(app),
        revoke_key(app),
        list_tags(app),
        show_slug(app),
        show_sparklines(app),
        enable_webhook(app),
        export_links(app),
        import_links(app),
        show_import(app),
        show_refused(app),
    ]);
    // The id is read where the caller is: whose workspace it is decides who may ask.
    let in_workspace = warp::path!("workspaces" / String / ..)
        .map(drop)
        .untuple_one()
        .and(any_of([only_here, of_workspace]))
        .boxed();
    let of_session = any_of([
        show_setup(app),
        set_up(app),
        sign_in(app),
        sign_out(app),
        sign_out_everywhere(app),
        show_session(app),
        list_members(app),
        create_member(app),
        remove_member(app),
        list_workspaces(app),
        create_workspace(app),
        in_workspace,
    ]);
    any_of([warp::path!("app" / "api" / ..).and(of_session).boxed(), show_page(), lead_to_page()])
}

/// `GET /`
fn lead_to_page() -> Route {
    warp::path::end()
        .and(warp::get().or(warp::head()).unify())
        .map(|| {
            let mut response = StatusCode::SEE_OTHER.into_response();
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/app"));
            response
        })
        .boxed()
}

/// `GET /app` and everything below it that is not below `/app/api`
fn show_page() -> Route {
    let page = Arc::new(Page::built());
    warp::path("app")
        .and(warp::path::tail())
        .and_then(|tail: Tail| async move {
            // What is not found there is said in JSON.
            let is_api = tail.as_str() == "api" || tail.as_str().starts_with("api/");
            if is_api { Err(warp::reject::not_found()) } else { Ok(tail) }
        })
        .and(warp::get().or(warp::head()).unify())
        .and(warp::header::headers_cloned())
        .map(move |tail: Tail, headers: HeaderMap| page.answer(tail.as_str(), &headers))
        .boxed()
}

/// `GET /app/api/setup`
fn show_setup(app: &App) -> Route {
    warp::path!("setup")
        .and(warp::get())
        .and(within_address_limit())
        .and(with(app))
        .then(sessions::is_needed)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST /app/api/setup`
fn set_up(app: &App) -> Route {
    warp::path!("setup")
        .and(warp::post())
        .and(within_address_limit())
        .and(own_page(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(sessions::set_up)
        .map(signed_in)
        .boxed()
}

/// `POST /app/api/sign-in`
fn sign_in(app: &App) -> Route {
    warp::path!("sign-in")
        .and(warp::post())
        .and(within_address_limit())
        .and(own_page(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(sessions::sign_in)
        .map(signed_in)
        .boxed()
}

/// `POST /app/api/sign-out`
fn sign_out(app: &App) -> Route {
    warp::path!("sign-out")
        .and(warp::post())
        .and(within_address_limit())
        .and(own_page(app))
        .and(with(app))
        .then(sessions::sign_out)
        .map(signed_out)
        .boxed()
}

/// `POST /app/api/sign-out-everywhere`
fn sign_out_everywhere(app: &App) -> Route {
    warp::path!("sign-out-everywhere")
        .and(warp::post())
        .and(member(app))
        .and(presented())
        .and(with(app))
        .then(sessions::sign_out_everywhere)
        .map(signed_out)
        .boxed()
}

/// `GET /app/api/session`
fn show_session(app: &App) -> Route {
    warp::path!("session")
        .and(warp::get())
        .and(member(app))
        .and(with(app))
        .then(sessions::show)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /app/api/members`
fn list_members(app: &App) -> Route {
    warp::path!("members")
        .and(warp::get())
        .and(member(app))
        .and(with(app))
        .then(members::list)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST /app/api/members`
fn create_member(app: &App) -> Route {
    warp::path!("members")
        .and(warp::post())
        .and(owner(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(members::create)
        .map(|result: Result<_, ApiError>| answer(StatusCode::CREATED, result.as_ref()))
        .boxed()
}

/// `DELETE /app/api/members/{id}`
fn remove_member(app: &App) -> Route {
    warp::path!("members" / String)
        .and(warp::delete())
        .and(owner(app))
        .and(with(app))
        .then(async |id: String, owner, app| members::remove(known(&id)?, owner, app).await)
        .map(no_content)
        .boxed()
}

/// `GET /app/api/workspaces`
fn list_workspaces(app: &App) -> Route {
    warp::path!("workspaces")
        .and(warp::get())
        .and(member(app))
        .and(with(app))
        .then(workspaces::list)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST /app/api/workspaces`
fn create_workspace(app: &App) -> Route {
    warp::path!("workspaces")
        .and(warp::post())
        .and(owner(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(workspaces::create)
        .map(|result: Result<_, ApiError>| answer(StatusCode::CREATED, result.as_ref()))
        .boxed()
}

/// `GET …/keys`
fn list_keys(app: &App) -> Route {
    warp::path!("keys")
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(keys::list)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST …/keys`
fn create_key(app: &App) -> Route {
    warp::path!("keys")
        .and(warp::post())
        .and(caller(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(keys::create)
        .map(|result: Result<_, ApiError>| answer(StatusCode::CREATED, result.as_ref()))
        .boxed()
}

/// `DELETE …/keys/{id}`
fn revoke_key(app: &App) -> Route {
    warp::path!("keys" / String)
        .and(warp::delete())
        .and(caller(app))
        .and(with(app))
        .then(async |id: String, caller, app| keys::revoke(known(&id)?, caller, app).await)
        .map(no_content)
        .boxed()
}

/// `GET …/tags`
fn list_tags(app: &App) -> Route {
    warp::path!("tags")
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(names::tags)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET …/slugs/{slug}`
fn show_slug(app: &App) -> Route {
    warp::path!("slugs" / String)
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(names::slug)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET …/sparklines`
fn show_sparklines(app: &App) -> Route {
    warp::path!("sparklines")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |caller, asked, app| stats::sparklines(asked, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST …/webhooks/{id}/enable`
fn enable_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String / "enable")
        .and(warp::post())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, writer, app| webhooks::enable(known(&id)?, writer, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET …/links/export`
fn export_links(app: &App) -> Route {
    warp::path!("links" / "export")
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(links::export)
        .map(|result: Result<links::Export, ApiError>| {
            result.map_or_else(ApiError::into_response, links::Export::into_response)
        })
        .boxed()
}

/// `POST …/links/import`
fn import_links(app: &App) -> Route {
    warp::path!("links" / "import")
        .and(warp::post())
        .and(editor(app))
        .and(idempotency_key())
        .and(csv_type())
        .and(query())
        .and(warp::body::stream())
        .and(with(app))
        .then(async |editor, key, asked, body, app| links::import(editor, key, asked, body, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET …/links/import/{id}`
fn show_import(app: &App) -> Route {
    warp::path!("links" / "import" / String)
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(async |id: String, caller, app| links::show_import(known(&id)?, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET …/links/import/{id}/refused`
fn show_refused(app: &App) -> Route {
    warp::path!("links" / "import" / String / "refused")
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(async |id: String, caller, app| links::refused_of_import(known(&id)?, caller, app).await)
        .map(|result: Result<links::Export, ApiError>| {
            result.map_or_else(ApiError::into_response, links::Export::into_response)
        })
        .boxed()
}

/// Lets a body of CSV through.
fn csv_type() -> impl Filter<Extract = (), Error = Rejection> + Copy {
    warp::header::headers_cloned()
        .and_then(|headers: HeaderMap| async move {
            let media_type =
                headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let media_type = media_type.split(';').next().unwrap_or_default().trim();
            if media_type.eq_ignore_ascii_case("text/csv") {
                return Ok(());
            }
            Err(warp::reject::custom(ApiError::unsupported_media_type("Send the file as text/csv.")))
        })
        .untuple_one()
}

fn signed_in(result: Result<SignedIn, ApiError>) -> Response {
    match result {
        Ok(SignedIn { session, cookie }) => {
            let mut response = json(StatusCode::OK, &session);
            response.headers_mut().insert(SET_COOKIE, cookie.header());
            response
        }
        Err(error) => error.into_response(),
    }
}

fn signed_out(result: Result<Cookie, ApiError>) -> Response {
    match result {
        Ok(cookie) => {
            let mut response = StatusCode::NO_CONTENT.into_response();
            response.headers_mut().insert(SET_COOKIE, cookie.header());
            response
        }
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dashboard_is_below_its_own_segment() {
        for path in ["/", "/app", "/app/", "/app/links", "/app/api/session"] {
            assert!(is_at(path), "{path}");
        }
        for path in ["/apps", "/api/app", "/application/x"] {
            assert!(!is_at(path), "{path}");
        }
    }
}
