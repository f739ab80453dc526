<?php
// Checks the signature of a webhook. Needs PHP 8 and nothing else.
//
//     WEBHOOK_SECRET=whsec_... php verify.php "$X_SERVICE_SIGNATURE" < body
//
// Prints `verified` and exits with 0, or `NOT VERIFIED` and 1. A second argument is the time to judge by, in Unix
// seconds.

declare(strict_types=1);

// A signed request that is older (or newer) than this is refused: somebody may have recorded it.
const TOLERANCE_SECONDS = 300;

/**
 * Tells whether `$header` signs the bytes `$body` with `$secret`, at about the time `$now` in Unix seconds.
 *
 * The header is `t=<unix seconds>,v1=<hex>`; while a secret is being rotated it has a second `v1`. The body must be
 * the bytes as they came, from `php://input`: JSON that was parsed and written again may differ.
 */
function verify(string $secret, string $header, string $body, int $now): bool
{
    $values = ['t' => [], 'v1' => []];
    foreach (explode(',', $header) as $part) {
        [$name, $value] = explode('=', $part, 2) + [1 => ''];
        if (isset($values[$name])) {
            $values[$name][] = $value;
        }
    }
    if (count($values['t']) !== 1 || !preg_match('/\A[0-9]{1,14}\z/', $values['t'][0])) {
        return false;
    }
    $time = $values['t'][0];
    if (abs($now - (int) $time) > TOLERANCE_SECONDS) {
        return false;
    }
    $expected = hash_hmac('sha256', "$time.$body", $secret);
    $verified = false;
    foreach ($values['v1'] as $signature) {
        // hash_equals takes the same time wherever the first difference is.
        if (hash_equals($expected, $signature)) {
            $verified = true;
        }
    }
    return $verified;
}

// Run as a program, and not included.
if (PHP_SAPI === 'cli' && realpath($argv[0]) === __FILE__) {
    $body = stream_get_contents(STDIN);
    $verified = verify((string) getenv('WEBHOOK_SECRET'), $argv[1] ?? '', $body, (int) ($argv[2] ?? time()));
    echo $verified ? "verified\n" : "NOT VERIFIED\n";
    exit($verified ? 0 : 1);
}
