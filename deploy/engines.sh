# For deploy/backup and deploy/restore: the access to the engines, without a password in a command line.

# What cannot be computed or fetched again. Rollups are computed from clicks; epochs, progress and purges begin anew; positions of the
# intake, and conversions that wait, are left out, so that it reads its topics from their beginning. Clicks are the first: what other
# tables say of a click is never older than it.
tables=(clicks conversions deleted_links recounts rebuilds retention sources stretches)

# A backup has every click, and what gives access.
umask 077

usage() {
    sed -n '2,/^[^#]/{/^# /s/^# //p}' "$0" >&2
    exit 64
}
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

# Prints the value of a variable, or of the file that it names with _FILE.
setting() {
    local file=$1_FILE
    if [ -n "${!1:-}" ]; then printf '%s' "${!1}"; elif [ -n "${!file:-}" ]; then cat "${!file}"; else fail "set $1"; fi
}

# Decodes %20 and the like.
decoded() { printf '%b' "${1//%/\\x}"; }

# Runs a program of Postgres on the database.
with_postgres() {
    local url password
    url=$(setting DATABASE_URL)
    if [[ $url =~ ^([a-z]+://[^:/@]+):([^@]*)@(.*)$ ]]; then
        url=${BASH_REMATCH[1]}@${BASH_REMATCH[3]}
        password=$(decoded "${BASH_REMATCH[2]}")
        password=${password//\\/\\\\}
        printf '*:*:*:*:%s\n' "${password//:/\\:}" >"$work/password"
        PGPASSFILE=$work/password "$1" --dbname "$url" "${@:2}"
    else
        "$1" --dbname "$url" "${@:2}"
    fi
}

# The server that has each file of clicks: one of each shard, named by its macro `shard`, or the only server. And the first of them.
declare -A server_of
server=
find_servers() {
    local hosts host file=clicks
    hosts=$(setting CLICKHOUSE_URL)
    hosts=${hosts#*://} hosts=${hosts%%/*} hosts=${hosts##*@}
    for host in ${hosts//,/ }; do
        server=$host
        [[ $hosts != *,* ]] || file=clicks-$(query "SELECT toUInt16OrZero(getMacro('shard'))")
        : "${server_of[$file]:=$host}"
    done
    server=${hosts%%,*}
}

# Prints the sorted names of all files of clicks that servers are there for.
files_of_clicks() { printf '%s\n' "${!server_of[@]}" | sort | xargs; }

# Sends a request to a server of ClickHouse: options of curl, then more parameters of the URL.
ask() {
    local url rest
    url=$(setting CLICKHOUSE_URL)
    [[ $url =~ ^(https?://)(([^:/@]+)(:([^@]*))?@)?([^/]+)/([A-Za-z0-9_]+)$ ]] || fail 'CLICKHOUSE_URL is not http(s)://user:password@host:port/database'
    rest=${*: -1}
    {
        printf 'url = "%s%s/?database=%s%s"\n' "${BASH_REMATCH[1]}" "$server" "${BASH_REMATCH[7]}" "$rest"
        [ -z "${BASH_REMATCH[3]}" ] || printf 'user = "%s:%s"\n' "$(decoded "${BASH_REMATCH[3]}")" "$(decoded "${BASH_REMATCH[5]}")"
        [ -z "${HOPLINE_CLICKHOUSE_CA_FILE:-}" ] || printf 'cacert = "%s"\n' "$HOPLINE_CLICKHOUSE_CA_FILE"
    } >"$work/request"
    curl --silent --show-error --fail-with-body --config "$work/request" "${@:1:$#-1}" || fail "ClickHouse at $server did not run a statement"
}

# Prints the answer to a statement.
query() { ask --data-binary "$1" ''; }
