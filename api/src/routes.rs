//! Every route of the API on one screen.

use http::{HeaderMap, StatusCode};
use serde::Serialize;
use service::http::route::any_of;
use service::http::{ApiError, BODY_LIMIT, Route, json, json_body, query};
use warp::reply::Response;
use warp::{Filter, Reply as _};

use crate::App;
use crate::auth::{caller, editor, writer};
use crate::idempotency::{Answer, idempotency_key};
use crate::limits::within_address_limit;
use crate::openapi::openapi;
use crate::{clicks, conversions, cors, dashboard, links, live, stats, usage, webhooks};

/// The API under `/api/v1` and, for ever the same, under `/api`; and the dashboard under `/app`.
pub(crate) fn routes(app: &App) -> Route {
    let of_workspace = of_workspace(app);
    let operations = any_of([
        of_workspace.clone(),
        // For anyone who holds a click id
        create_conversion(app),
        // For programs and people who want to know more
        openapi(),
        // For browsers of other sites
        cors::preflight(),
    ]);
    any_of([
        warp::path!("api" / "v1" / ..).and(operations.clone()).boxed(),
        warp::path!("api" / ..).and(operations).boxed(),
        dashboard::routes(app, of_workspace),
    ])
}

/// The operations of a workspace, for a key of it or, at the dashboard, for a member.
fn of_workspace(app: &App) -> Route {
    any_of([
        create_link(app),
        create_links(app),
        upsert_link(app),
        list_links(app),
        show_link(app),
        show_qr(app),
        update_link(app),
        delete_link(app),
        create_webhook(app),
        list_webhooks(app),
        show_webhook(app),
        update_webhook(app),
        delete_webhook(app),
        rotate_webhook_secret(app),
        list_webhook_failures(app),
        show_webhook_delivery(app),
        test_webhook(app),
        redeliver_webhook(app),
        show_usage(app),
        show_link_stats(app),
        show_link_breakdown(app),
        list_link_clicks(app),
        list_link_conversions(app),
        show_stats(app),
        show_breakdown(app),
        list_clicks(app),
        list_conversions(app),
        show_live(app),
        show_link_live(app),
    ])
}

/// `POST /links`
fn create_link(app: &App) -> Route {
    warp::path!("links")
        .and(warp::post())
        .and(editor(app))
        .and(idempotency_key())
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(links::create)
        .map(written)
        .boxed()
}

/// `POST /links/bulk`
fn create_links(app: &App) -> Route {
    warp::path!("links" / "bulk")
        .and(warp::post())
        .and(editor(app))
        .and(idempotency_key())
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(links::bulk)
        .map(written)
        .boxed()
}

/// `PUT /links/upsert`
fn upsert_link(app: &App) -> Route {
    warp::path!("links" / "upsert")
        .and(warp::put())
        .and(editor(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(links::upsert)
        .map(written)
        .boxed()
}

/// `GET /links`
fn list_links(app: &App) -> Route {
    warp::path!("links")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |caller, page, app| links::list(page, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /links/{id}`
fn show_link(app: &App) -> Route {
    warp::path!("links" / String)
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |id: String, caller, dates, app| links::show(known(&id)?, dates, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /links/{id}/qr`
fn show_qr(app: &App) -> Route {
    warp::path!("links" / String / "qr")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |id: String, caller, look, app| links::qr(known(&id)?, look, caller, app).await)
        .map(|result: Result<links::Qr, ApiError>| {
            result.map_or_else(ApiError::into_response, links::Qr::into_response)
        })
        .boxed()
}

/// `PATCH /links/{id}`
fn update_link(app: &App) -> Route {
    warp::path!("links" / String)
        .and(warp::patch())
        .and(editor(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(async |id: String, writer, fields, app| links::update(known(&id)?, writer, fields, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `DELETE /links/{id}`
fn delete_link(app: &App) -> Route {
    warp::path!("links" / String)
        .and(warp::delete())
        .and(editor(app))
        .and(with(app))
        .then(async |id: String, writer, app| links::delete(known(&id)?, writer, app).await)
        .map(no_content)
        .boxed()
}

/// `POST /webhooks`
fn create_webhook(app: &App) -> Route {
    warp::path!("webhooks")
        .and(warp::post())
        .and(writer(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(webhooks::create)
        .map(|result: Result<_, ApiError>| answer(StatusCode::CREATED, result.as_ref()))
        .boxed()
}

/// `GET /webhooks`
fn list_webhooks(app: &App) -> Route {
    warp::path!("webhooks")
        .and(warp::get())
        .and(query())
        .and(writer(app))
        .and(with(app))
        .then(webhooks::list)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /webhooks/{id}`
fn show_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String)
        .and(warp::get())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, writer, app| webhooks::show(known(&id)?, writer, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `PATCH /webhooks/{id}`
fn update_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String)
        .and(warp::patch())
        .and(writer(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(async |id: String, writer, changes, app| {
            webhooks::update(known(&id)?, writer, changes, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `DELETE /webhooks/{id}`
fn delete_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String)
        .and(warp::delete())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, writer, app| webhooks::delete(known(&id)?, writer, app).await)
        .map(no_content)
        .boxed()
}

/// `POST /webhooks/{id}/rotate-secret`
fn rotate_webhook_secret(app: &App) -> Route {
    warp::path!("webhooks" / String / "rotate-secret")
        .and(warp::post())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, writer, app| webhooks::rotate_secret(known(&id)?, writer, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /webhooks/{id}/failures`
fn list_webhook_failures(app: &App) -> Route {
    warp::path!("webhooks" / String / "failures")
        .and(warp::get())
        .and(query())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, page, writer, app| webhooks::failures(known(&id)?, page, writer, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /webhooks/{id}/deliveries/{delivery_id}`
fn show_webhook_delivery(app: &App) -> Route {
    warp::path!("webhooks" / String / "deliveries" / String)
        .and(warp::get())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, delivery: String, writer, app| {
            webhooks::delivery(known(&id)?, known(&delivery)?, writer, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `POST /webhooks/{id}/test`
fn test_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String / "test")
        .and(warp::post())
        .and(writer(app))
        .and(with(app))
        .then(async |id: String, writer, app| webhooks::send_test(known(&id)?, writer, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::ACCEPTED, result.as_ref()))
        .boxed()
}

/// `POST /webhooks/{id}/redeliver`
fn redeliver_webhook(app: &App) -> Route {
    warp::path!("webhooks" / String / "redeliver")
        .and(warp::post())
        .and(writer(app))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(async |id: String, writer, selection, app| {
            webhooks::redeliver(known(&id)?, writer, selection, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::ACCEPTED, result.as_ref()))
        .boxed()
}

/// `GET /usage`
fn show_usage(app: &App) -> Route {
    warp::path!("usage")
        .and(warp::get())
        .and(caller(app))
        .and(with(app))
        .then(usage::usage)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /links/{id}/stats`
fn show_link_stats(app: &App) -> Route {
    warp::path!("links" / String / "stats")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |id: String, caller, asked, app| stats::show(Some(known(&id)?), asked, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /links/{id}/stats/{dimension}`
fn show_link_breakdown(app: &App) -> Route {
    warp::path!("links" / String / "stats" / String)
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |id: String, dimension, caller, asked, app| {
            stats::breakdown(Some(known(&id)?), dimension, asked, caller, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /links/{id}/clicks`
fn list_link_clicks(app: &App) -> Route {
    warp::path!("links" / String / "clicks")
        .and(warp::get())
        .and(caller(app))
        .and(format())
        .and(query())
        .and(with(app))
        .then(async |id: String, caller, format, asked, app| {
            clicks::clicks(Some(known(&id)?), format, asked, caller, app).await
        })
        .map(exported)
        .boxed()
}

/// `GET /links/{id}/conversions`
fn list_link_conversions(app: &App) -> Route {
    warp::path!("links" / String / "conversions")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |id: String, caller, asked, app| {
            conversions::list(Some(known(&id)?), asked, caller, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /stats`
fn show_stats(app: &App) -> Route {
    warp::path!("stats")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |caller, asked, app| stats::show(None, asked, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /stats/{dimension}`
fn show_breakdown(app: &App) -> Route {
    warp::path!("stats" / String)
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |dimension, caller, asked, app| {
            stats::breakdown(None, dimension, asked, caller, app).await
        })
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /clicks`
fn list_clicks(app: &App) -> Route {
    warp::path!("clicks")
        .and(warp::get())
        .and(caller(app))
        .and(format())
        .and(query())
        .and(with(app))
        .then(async |caller, format, asked, app| clicks::clicks(None, format, asked, caller, app).await)
        .map(exported)
        .boxed()
}

/// `GET /conversions`
fn list_conversions(app: &App) -> Route {
    warp::path!("conversions")
        .and(warp::get())
        .and(caller(app))
        .and(query())
        .and(with(app))
        .then(async |caller, asked, app| conversions::list(None, asked, caller, app).await)
        .map(|result: Result<_, ApiError>| answer(StatusCode::OK, result.as_ref()))
        .boxed()
}

/// `GET /live`
fn show_live(app: &App) -> Route {
    warp::path!("live")
        .and(warp::get())
        .and(caller(app))
        .and(warp::header::headers_cloned())
        .and(with(app))
        .then(async |caller, headers, app| live::live(None, headers, caller, app).await)
        .map(streamed)
        .boxed()
}

/// `GET /links/{id}/live`
fn show_link_live(app: &App) -> Route {
    warp::path!("links" / String / "live")
        .and(warp::get())
        .and(caller(app))
        .and(warp::header::headers_cloned())
        .and(with(app))
        .then(async |id: String, caller, headers, app| {
            live::live(Some(known(&id)?), headers, caller, app).await
        })
        .map(streamed)
        .boxed()
}

/// `POST /conversions`
fn create_conversion(app: &App) -> Route {
    warp::path!("conversions")
        .and(warp::post())
        .and(within_address_limit())
        .and(warp::header::headers_cloned().map(|headers: HeaderMap| conversions::from_request(&headers)))
        .and(json_body(BODY_LIMIT))
        .and(with(app))
        .then(conversions::create)
        .map(|result: Result<_, ApiError>| answer(StatusCode::CREATED, result.as_ref()))
        .boxed()
}

/// Extracts the state.
pub(crate) fn with(
    app: &App,
) -> impl Filter<Extract = (App,), Error = std::convert::Infallible> + Clone + use<> {
    let app = app.clone();
    warp::any().map(move || app.clone())
}

/// The form that the `Accept` header asks for.
fn format() -> impl Filter<Extract = (clicks::Format,), Error = std::convert::Infallible> + Copy {
    warp::header::headers_cloned().map(|headers: HeaderMap| clicks::Format::accepted(&headers))
}

/// The id of a path. What is no id at all names nothing, so it is not found, like an id of somebody else's.
pub(crate) fn known<I: std::str::FromStr>(text: &str) -> Result<I, ApiError> {
    text.parse().map_err(|_| ApiError::not_found("There is nothing with this id in this workspace."))
}

/// The answer of a value, or the refusal.
pub(crate) fn answer<T: Serialize>(status: StatusCode, result: Result<&T, &ApiError>) -> Response {
    match result {
        Ok(value) => json(status, value),
        Err(error) => error.clone().into_response(),
    }
}

fn exported(result: Result<clicks::Answer, ApiError>) -> Response {
    result.map_or_else(ApiError::into_response, clicks::Answer::into_response)
}

fn streamed(result: Result<live::Stream, ApiError>) -> Response {
    result.map_or_else(ApiError::into_response, live::Stream::into_response)
}

fn written(result: Result<Answer, ApiError>) -> Response {
    result.map_or_else(ApiError::into_response, Answer::into_response)
}

/// The answer of what has nothing to say, or the refusal.
pub(crate) fn no_content(result: Result<(), ApiError>) -> Response {
    match result {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.into_response(),
    }
}
