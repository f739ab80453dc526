#!/bin/sh
# Draws the passwords and keys of a new installation into /run/hopline, and keeps those that exist. Then gives each container
# a copy of those that it needs, in its volume below /run/copies. Runs in a container.
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

# Creates a key with a certificate that it signed itself, in NAME.pem, and that certificate alone, in NAME_certificate.pem.
certificate() {
    [ -s "$1.pem" ] || {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$2" \
            -addext "subjectAltName=DNS:$2" -keyout "$1.new" -out "$1_certificate.pem" 2>/dev/null
        cat "$1_certificate.pem" >>"$1.new"
        mv "$1.new" "$1.pem"
    }
}

# Writes standard input to a file for a container that only this user can read: give USER CONTAINER/FILE
give() {
    file=/run/copies/$2
    cat >"$file.new"
    chown "$1:$1" "${file%/*}" "$file.new"
    chmod 0700 "${file%/*}"
    mv "$file.new" "$file"
}

# The administrator's of each engine, and those of the programs' users there.
for user in database clickhouse kafka ingest_kafka processor_kafka processor_clickhouse \
    api_kafka api_clickhouse api_postgres dispatcher_kafka dispatcher_postgres; do
    random | keep "${user}_password"
done
random | keep visitor_key
printf '1:%s' "$(random)" | keep click_id_keys
printf '1:%s' "$(random)" | keep secret_keys
printf 'postgres://hopline:%s@postgres:5432/hopline' "$(cat database_password)" | keep database_url
printf 'http://hopline:%s@clickhouse:8123/hopline' "$(cat clickhouse_password)" | keep clickhouse_url

# For edges on other machines: each side trusts the other's certificate.
certificate kafka kafka
certificate edge hopline_ingest
chmod 0644 kafka_certificate.pem edge_certificate.pem

# The users of the images. Postgres' reads its files as root.
image=10001 kafka=1000 clickhouse=101 postgres=0

# `migrate` reads these itself, and edges on other machines get theirs.
chown "$image:$image" . click_id_keys visitor_key secret_keys database_url clickhouse_url kafka_password edge.pem
chmod 0700 .

for program in ingest api; do
    give "$image" "$program/click_id_keys" <click_id_keys
done
for program in api dispatcher; do
    give "$image" "$program/secret_keys" <secret_keys
done
give "$image" ingest/visitor_key <visitor_key

password=$(cat kafka_password)
users="username=\"hopline\" password=\"$password\" user_hopline=\"$password\""
for program in ingest processor api dispatcher; do
    password=$(cat "${program}_kafka_password")
    printf %s "$password" | give "$image" "$program/kafka_password"
    users="$users user_hopline_$program=\"$password\""
done
printf 'users=org.apache.kafka.common.security.plain.PlainLoginModule required %s;\n' "$users" |
    give "$kafka" kafka/users.properties
give "$kafka" kafka/kafka.pem <kafka.pem
give "$kafka" kafka/edge_certificate.pem <edge_certificate.pem

give "$clickhouse" clickhouse/password <clickhouse_password
users=
for program in processor api; do
    password=$(cat "${program}_clickhouse_password")
    printf 'http://hopline_%s:%s@clickhouse:8123/hopline' "$program" "$password" | give "$image" "$program/clickhouse_url"
    hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
    grants=$(sed -n "s|^\(GRANT .*\) TO hopline_$program;\$|<query>\1</query>|p" /clickhouse-grants.sql)
    # Without any, the user would have all rights.
    users="$users<hopline_$program>
<password_sha256_hex>$hash</password_sha256_hex><networks><ip>::/0</ip></networks>
<profile>default</profile><quota>default</quota><grants>
${grants:?clickhouse-grants.sql has no rights of hopline_$program}
</grants></hopline_$program>"
done
printf '<clickhouse><users>%s</users></clickhouse>\n' "$users" | give "$clickhouse" clickhouse/users.xml

give "$postgres" postgres/password <database_password
users=
for program in api dispatcher; do
    password=$(cat "${program}_postgres_password")
    printf 'postgres://hopline_%s:%s@postgres:5432/hopline' "$program" "$password" | give "$image" "$program/database_url"
    users="$users
SELECT 'CREATE ROLE hopline_$program' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'hopline_$program') \\gexec
ALTER ROLE hopline_$program LOGIN PASSWORD '$password';"
done
printf '%s\n' "$users" | give "$postgres" postgres/users.sql
