#!/bin/sh
# Draws the passwords and keys of a new installation into /run/hopline; keeps those that exist. Runs in a container.
set -eu
umask 077
cd /run/hopline

# Prints 32 random bytes as hex digits.
random() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }

# Writes standard input to a file that is never half-written, unless it exists.
keep() {
    [ -s "$1" ] || {
        cat >"$1.new"
        mv "$1.new" "$1"
    }
}

random | keep database_password
random | keep clickhouse_password
random | keep visitor_key
printf '1:%s' "$(random)" | keep click_id_keys
printf '1:%s' "$(random)" | keep secret_keys
printf 'postgres://hopline:%s@postgres:5432/hopline' "$(cat database_password)" | keep database_url
printf 'http://hopline:%s@clickhouse:8123/hopline' "$(cat clickhouse_password)" | keep clickhouse_url

# The programs' user; engines read their passwords as root.
chown 10001:10001 . click_id_keys visitor_key secret_keys database_url clickhouse_url
chmod 0711 .
