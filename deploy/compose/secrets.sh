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

# Creates a key with a certificate that it signed itself, in NAME.pem, and that certificate alone, in NAME_certificate.pem.
certificate() {
    [ -s "$1.pem" ] || {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$2" \
            -addext "subjectAltName=DNS:$2" -keyout "$1.new" -out "$1_certificate.pem" 2>/dev/null
        cat "$1_certificate.pem" >>"$1.new"
        mv "$1.new" "$1.pem"
    }
}

random | keep database_password
random | keep clickhouse_password
random | keep visitor_key
printf '1:%s' "$(random)" | keep click_id_keys
printf '1:%s' "$(random)" | keep secret_keys
printf 'postgres://hopline:%s@postgres:5432/hopline' "$(cat database_password)" | keep database_url
printf 'http://hopline:%s@clickhouse:8123/hopline' "$(cat clickhouse_password)" | keep clickhouse_url

# For edges on other machines: each side trusts the other's certificate.
certificate kafka kafka
certificate edge hopline_ingest
chmod 0644 kafka_certificate.pem edge_certificate.pem
# The user of Kafka's image.
chown 1000 kafka.pem

# The programs' user; engines read their passwords as root.
chown 10001:10001 . click_id_keys visitor_key secret_keys database_url clickhouse_url edge.pem
chmod 0711 .
