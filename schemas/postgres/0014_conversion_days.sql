-- Conversions of each account on a day, over all its workspaces. Unlogged, as table request_windows is: after a crash
-- of Postgres the day begins anew.
CREATE UNLOGGED TABLE conversion_days (
    account_id uuid PRIMARY KEY,
    day date NOT NULL,
    conversions bigint NOT NULL
) WITH (fillfactor = 50);
