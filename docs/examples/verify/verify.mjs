// Checks the signature of a webhook. Needs Node 18 or later and nothing else.
//
//     WEBHOOK_SECRET=whsec_... node verify.mjs "$X_SERVICE_SIGNATURE" < body
//
// Prints `verified` and exits with 0, or `NOT VERIFIED` and 1. A second argument is the time to judge by, in Unix seconds.

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

// A signed request that is older (or newer) than this is refused: somebody may have recorded it.
const TOLERANCE_SECONDS = 300;

/**
 * Tells whether `header` signs the bytes `body` (a Buffer) with `secret`, at about the time `now` in Unix seconds.
 *
 * The header is `t=<unix seconds>,v1=<hex>`; while a secret is being rotated it has a second `v1`. The body must be
 * the bytes as they came: JSON that was parsed and written again may differ.
 */
export function verify(secret, header, body, now) {
  const values = (name) =>
    header
      .split(",")
      .filter((part) => part.startsWith(`${name}=`))
      .map((part) => part.slice(name.length + 1));
  const times = values("t");
  if (times.length !== 1 || !/^[0-9]{1,14}$/.test(times[0])) return false;
  if (Math.abs(now - Number(times[0])) > TOLERANCE_SECONDS) return false;
  const mac = createHmac("sha256", secret).update(`${times[0]}.`).update(body).digest("hex");
  const expected = Buffer.from(mac);
  // timingSafeEqual takes the same time wherever the first difference is, and throws when lengths differ.
  const matches = values("v1").map((value) => {
    const given = Buffer.from(value);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
  return matches.includes(true);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [header = "", now = String(Math.floor(Date.now() / 1000))] = process.argv.slice(2);
  const verified = verify(process.env.WEBHOOK_SECRET ?? "", header, readFileSync(0), Number(now));
  console.log(verified ? "verified" : "NOT VERIFIED");
  process.exitCode = verified ? 0 : 1;
}
