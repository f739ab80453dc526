//! The command line of `api admin`.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use schemas::id::{AccountId, EdgeTokenId, EndpointId, KeyId, LinkId, WorkspaceId};

use crate::account::token::DEFAULT_NAME;
use crate::plan::Plan;
use crate::store::keys::Scope;
use crate::store::role::Role;
use crate::store::workspaces::Kind;

/// An operator's command.
#[derive(Debug, Clone, Args)]
pub struct Admin {
    #[command(subcommand)]
    pub(super) command: Command,

    /// Print the answer as one line of JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum Command {
    /// Creates an account with an owner and a personal workspace.
    ///
    /// Example: api admin create-account --name "Corner shop" --plan business
    CreateAccount {
        /// Name of the account, and of its workspace.
        #[arg(long)]
        name: String,
        /// The account's plan.
        #[arg(long, value_enum)]
        plan: Plan,
    },
    /// Creates a workspace of an account.
    ///
    /// Example: api admin create-workspace --account acc_… --name Marketing --kind organization
    CreateWorkspace {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// Name of the workspace.
        #[arg(long)]
        name: String,
        /// What the workspace is for.
        #[arg(long, value_enum)]
        kind: Kind,
    },
    /// Creates a member of an account, who can sign in. Reads the password from standard input.
    ///
    /// Example: api admin create-user --account acc_… --email ada@example.com --password-stdin < password.txt
    CreateUser {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The member's email address; no two members of any account have the same, in whatever case.
        #[arg(long)]
        email: String,
        /// The member's name.
        #[arg(long, default_value = "")]
        name: String,
        /// What the member may do.
        #[arg(long, value_enum, default_value = "editor")]
        role: Role,
        /// Read the password from standard input: one line of 12 characters or more.
        #[arg(long, required = true)]
        password_stdin: bool,
    },
    /// Changes a member's password and signs the member out. Reads the password from standard input.
    ///
    /// Example: api admin reset-password --email ada@example.com --password-stdin < password.txt
    ResetPassword {
        /// The member's email address.
        #[arg(long)]
        email: String,
        /// Read the password from standard input: one line of 12 characters or more.
        #[arg(long, required = true)]
        password_stdin: bool,
    },
    /// Removes a member's second factor and recovery codes, and signs the member out. The password stays.
    ///
    /// Example: api admin reset-two-factor --email ada@example.com
    ResetTwoFactor {
        /// The member's email address.
        #[arg(long)]
        email: String,
    },
    /// Prints the token that creates the owner at the dashboard, while nobody has signed in.
    ///
    /// Example: api admin setup-token
    SetupToken,
    /// Creates an API key for a workspace and prints it. It is not shown again.
    ///
    /// Example: api admin create-key --workspace wsp_… --name "Web shop" --scope read,write
    CreateKey {
        /// The workspace's id.
        #[arg(long)]
        workspace: WorkspaceId,
        /// What the key is called.
        #[arg(long, default_value = DEFAULT_NAME)]
        name: String,
        /// What the key may do.
        #[arg(long, value_enum)]
        scope: Scope,
        /// When the key stops working, such as 2027-01-31T12:00:00Z.
        #[arg(long, value_parser = schemas::time::parse)]
        expires_at: Option<DateTime<Utc>>,
    },
    /// Revokes an API key for good. The next request with it is rejected.
    ///
    /// Example: api admin revoke-key --key-id key_…
    RevokeKey {
        /// The key's id, not the key.
        #[arg(long)]
        key_id: KeyId,
    },
    /// Changes an account's plan. Locks its newest links above the plan's cap, and unlocks the others.
    ///
    /// The plan applies from the next request on. After a change of the plans file, run it with the account's own plan.
    ///
    /// Example: api admin set-plan --account acc_… --plan agency
    SetPlan {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The account's plan from now on.
        #[arg(long, value_enum)]
        plan: Plan,
    },
    /// Creates a token for an external redirect edge and prints it. It is not shown again.
    ///
    /// Example: api admin create-edge-token
    CreateEdgeToken {
        /// The only workspace whose clicks the edge may send; every workspace's when absent.
        #[arg(long)]
        workspace: Option<WorkspaceId>,
    },
    /// Revokes a token of an external redirect edge.
    ///
    /// Example: api admin revoke-edge-token --edge-token-id edg_…
    RevokeEdgeToken {
        /// The token's id, not the token.
        #[arg(long)]
        edge_token_id: EdgeTokenId,
    },
    /// Publishes every link and edge token again, after Kafka has lost the topic `links`.
    ///
    /// Waits until Kafka has them, which needs a running API. May be interrupted and run again at any time.
    ///
    /// Examples: api admin publish-links; api admin publish-links --restored
    PublishLinks {
        /// Postgres was restored from a backup: give each link a revision above those that were lost, so that edges
        /// take what Postgres has instead of the later changes that they know.
        #[arg(long)]
        restored: bool,
    },
    /// Publishes conversions again from Postgres, after Kafka and ClickHouse have lost them. Each counts once.
    ///
    /// Waits until Kafka has them, which needs a running API. May be interrupted and run again at any time.
    ///
    /// Example: api admin publish-conversions --since 2026-11-20T00:00:00Z
    PublishConversions {
        /// Only those that were registered since this time.
        #[arg(long, value_name = "TIME", default_value = "1970-01-01T00:00:00Z", value_parser = schemas::time::parse)]
        since: DateTime<Utc>,
    },
    /// Enables a disabled webhook endpoint. It gets the events from now on.
    ///
    /// Example: api admin enable-endpoint --id whe_…
    EnableEndpoint {
        /// The endpoint's id.
        #[arg(long)]
        id: EndpointId,
    },
    /// Lists all accounts.
    ///
    /// Example: api admin list-accounts --json
    ListAccounts,
    /// Lists the workspaces of an account, or of all accounts.
    ///
    /// Example: api admin list-workspaces --account acc_…
    ListWorkspaces {
        /// The account's id.
        #[arg(long)]
        account: Option<AccountId>,
    },
    /// Lists the API keys of a workspace, or of all workspaces, with when they were last used. Shows no key.
    ///
    /// Example: api admin list-keys --workspace wsp_…
    ListKeys {
        /// The workspace's id.
        #[arg(long)]
        workspace: Option<WorkspaceId>,
    },
    /// Finds the link that has a slug, with its workspace and account.
    ///
    /// Example: api admin find-link --slug spring
    FindLink {
        /// The slug, as in the short URL.
        #[arg(long)]
        slug: String,
    },
    /// Blocks a link: edges answer 410 with a page that says so, and do not count. It cannot be edited, only deleted.
    ///
    /// Example: api admin block-link --id lnk_… --reason "Phishing, reported by the bank"
    BlockLink {
        /// The link's id; `find-link` finds it by its slug.
        #[arg(long)]
        id: LinkId,
        /// Why, as the link's owner sees it.
        #[arg(long)]
        reason: String,
    },
    /// Ends the block of a link.
    ///
    /// Example: api admin unblock-link --id lnk_…
    UnblockLink {
        /// The link's id.
        #[arg(long)]
        id: LinkId,
    },
    /// Blocks a host and its subdomains as destinations. Existing links to it are blocked, new ones are rejected.
    ///
    /// Example: api admin block-destination --host evil.example
    BlockDestination {
        /// The host, without scheme, port and path.
        #[arg(long)]
        host: String,
    },
    /// Ends the block of a host, and of the links to it.
    ///
    /// Example: api admin unblock-destination --host evil.example
    UnblockDestination {
        /// The host, as `list-blocked` shows it.
        #[arg(long)]
        host: String,
    },
    /// Lists blocked hosts, blocked links and suspended accounts.
    ///
    /// Example: api admin list-blocked --json
    ListBlocked,
    /// Suspends an account: nobody can sign in or use its keys, its links answer 410, its webhooks wait.
    ///
    /// Run it again if it was interrupted.
    ///
    /// Example: api admin suspend-account --account acc_… --reason "Unpaid since March"
    SuspendAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// Why, for the audit trail.
        #[arg(long)]
        reason: String,
    },
    /// Brings back all of a suspended account.
    ///
    /// Example: api admin resume-account --account acc_…
    ResumeAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
    },
    /// Deletes an account with everything of it, for good: first its links, then all else in Postgres; clicks within
    /// the hour.
    ///
    /// What stays is the ids of its links, so that no replay brings one back, and entries of the audit trail without
    /// names. Its slugs are nobody's for 90 days. Run it again if it was interrupted.
    ///
    /// Example: api admin delete-account --account acc_… --confirm "Corner shop"
    DeleteAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The account's name, as `show-account` prints it.
        #[arg(long, value_name = "NAME")]
        confirm: String,
    },
    /// Writes everything of an account to files of JSON lines in a new directory: links, clicks, conversions, members,
    /// workspaces, keys and webhooks, without secrets.
    ///
    /// Example: api admin export-account --account acc_… --to ./corner-shop
    ExportAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
        /// The directory, which must not exist yet.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Removes all that has ended, as the running API does every ten minutes, compares every link with the blocked
    /// hosts, and prints how much it removed.
    ///
    /// Example: api admin sweep --json
    Sweep,
    /// Seals all secrets of webhooks and second factors with the first of HOPLINE_SECRET_KEYS, so that the other keys
    /// can be removed.
    ///
    /// Example: api admin reseal
    Reseal,
    /// Shows the audit trail: what operators and members have changed, the newest first.
    ///
    /// Example: api admin audit-trail --since 2026-11-01T00:00:00Z --limit 1000
    AuditTrail {
        /// Only entries of this account.
        #[arg(long)]
        account: Option<AccountId>,
        /// The earliest time of an entry, such as 2026-11-01T00:00:00Z.
        #[arg(long, value_parser = schemas::time::parse)]
        since: Option<DateTime<Utc>>,
        /// Maximum number of entries.
        #[arg(long, default_value = "100")]
        limit: u32,
    },
    /// Shows an account: its members, its workspaces and how much of its plan is used.
    ///
    /// Example: api admin show-account --account acc_… --json
    ShowAccount {
        /// The account's id.
        #[arg(long)]
        account: AccountId,
    },
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        _admin: Admin,
    }

    #[test]
    fn a_time_is_rfc_3339_with_a_second_that_exists() {
        for (arguments, name) in [
            (&["audit-trail"][..], "--since"),
            (&["publish-conversions"], "--since"),
            (
                &["create-key", "--scope", "read", "--workspace", "wsp_00000000000000000000000000"],
                "--expires-at",
            ),
        ] {
            let parse = |time: &str| {
                Program::try_parse_from([&["api"], arguments, &[name, time]].concat())
                    .map_err(|error| error.to_string())
            };
            assert!(parse("2026-11-28T14:53:59+01:00").is_ok(), "{arguments:?}");
            for (time, reason) in [
                ("2026-11-28T14:53:60Z", "must have a time of day from 00:00:00 to 23:59:59"),
                ("2026-11-31T14:53:00Z", "must be on a day of the calendar"),
                ("2026-11-28", "must be a time such as 2027-01-31T12:00:00Z"),
            ] {
                let error = parse(time).unwrap_err();
                assert!(error.contains(reason), "{error}");
            }
        }
    }
}
