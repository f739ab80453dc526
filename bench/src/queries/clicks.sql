-- Clicks of one broker's day: {hot} of one link, {cold} of {links} others, few of most of them.
-- Values are drawn from hashes of a number, evenly or, where u is an exponent, the first ones far more often.
INSERT INTO clicks
    (workspace_id, link_id, occurred_at, click_id, slug, class, visitor, country, device_type, browser, os, referrer,
     utm_source, utm_medium, utm_campaign, utm_term, utm_content, external_click_id, user_agent, purpose, again, src,
     koff, broker_ts)
SELECT
    toUUID('{workspace}'),
    toUUID(concat('00000000-0000-7000-8000-', leftPad(lower(hex(link)), 12, '0'))),
    -- On one day in ten an edge was away, and one click in twenty comes up to ten days late.
    if(sipHash64('{day}') % 10 = 0 AND h[1] % 20 = 0, taken - toIntervalMillisecond(h[2] % 864000000), taken),
    -- As long and as random as a real one, which begins with its link.
    concat(base64URLEncode(concat('0123456789abcdef', reinterpretAsString(link))), substring(hex(sipHash128(n)), 1, 32)),
    concat('slug-', toString(link)),
    multiIf(h[3] % 100 < 90, 'human', h[3] % 100 < 97, 'bot', 'preview'),
    sipHash64(if(link = 0, toUInt64({visitors} * u[1]), link * 1000003 + toUInt64(5000 * u[1]))),
    concat(char(65 + country % 26), char(65 + intDiv(country, 26))),
    ['mobile', 'desktop', 'tablet', 'other'][toUInt8(pow(4, u[3]))],
    concat('Browser ', toString(toUInt8(pow(14, u[4])))),
    concat('System ', toString(toUInt8(pow(9, u[5])))),
    if(h[4] % 2 = 0, '', concat('site-', toString(toUInt16(pow(2000, u[6]))), '.example')),
    if(tagged, concat('source-', toString(toUInt8(pow(20, u[7])))), ''),
    if(tagged, concat('medium-', toString(toUInt8(pow(6, u[8])))), ''),
    if(tagged, concat('campaign-', toString(toUInt16(pow(200, u[9])))), ''),
    if(tagged AND h[5] % 4 = 0, concat('term-', toString(toUInt16(pow(500, u[10])))), ''),
    if(tagged AND h[5] % 4 = 1, concat('content-', toString(toUInt16(pow(100, u[11])))), ''),
    '',
    concat('Mozilla/5.0 (System ', toString(toUInt8(pow(9, u[5]))), '; Device ', toString(toUInt16(pow(800, u[12]))),
           ') Engine/537.36 (like others) Browser/', toString(toUInt8(pow(14, u[4]))), '.0.0.0 Mobile Engine/537.36'),
    '',
    false,
    65536 + n % 6,
    n,
    taken
FROM
(
    SELECT
        number + {first} AS n,
        arrayMap(i -> sipHash64(n, i), range(1, 6)) AS h,
        arrayMap(i -> (sipHash64(n, 100 + i) % 1000000) / 1000000., range(1, 13)) AS u,
        toUInt64(if(number < {hot}, 0, pow({links}, u[2]))) AS link,
        toUInt16(pow(150, (sipHash64(n, 200) % 1000000) / 1000000.)) AS country,
        h[4] % 5 < 2 AS tagged,
        toDateTime64('{day} 00:00:00', 3, 'UTC') + toIntervalMillisecond(sipHash64(n, 300) % 86400000) AS taken
    FROM numbers({hot} + {cold})
)
SETTINGS max_insert_threads = 2, max_partitions_per_insert_block = 1
