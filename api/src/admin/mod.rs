//! `api admin …`: what operators do from the command line. Every change is in the audit trail.

mod accounts;
mod args;
mod blocks;
mod checks;
mod delete_account;
mod export_account;
mod keys;
mod publish;
mod reseal;
mod run;
mod trail;

pub use args::Admin;
pub(crate) use run::run;
