//! The API in-process, on real engines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod admin;
mod bulk;
mod clicks;
mod clicks_list;
mod conversions;
mod dashboard;
mod dashboard_accounts;
mod dashboard_import;
mod dashboard_live;
mod dashboard_page;
mod dashboard_security;
mod dashboard_sessions;
mod dashboard_uploads;
mod dashboard_workspaces;
mod faults;
mod http;
mod idempotency;
mod keys;
mod limits;
mod links;
mod list;
mod lists_on_indexes;
mod locked;
mod outbox;
mod plans;
mod qr;
mod server;
mod slugs;
mod stats;
mod stats_faults;
mod stats_model;
mod stats_retention;
mod stats_uniques;
mod texts;
mod upsert;
mod usage;
mod webhook_failures;
mod webhook_health;
mod webhooks;
