-- Clicks into the same raw table by ClickHouse's own Kafka engine, with views for the same rollups.
--
-- The engine inserts at least once and does less than the processor: it ignores repeats, deleted links and months, and
-- cuts ids instead of decoding them.
CREATE TABLE engine_counts
(
    workspace_id UUID,
    unit Enum8('hour' = 1, 'day' = 2, 'month' = 3),
    link_id UUID,
    class LowCardinality(String),
    start DateTime('UTC') CODEC(Delta(4), ZSTD(1)),
    clicks SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    visitors AggregateFunction(uniqCombined64(17), UInt64) CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
ORDER BY (workspace_id, unit, link_id, class, start)
SETTINGS index_granularity = 512, index_granularity_bytes = 131072;

CREATE TABLE engine_breakdowns
(
    workspace_id UUID,
    dimension LowCardinality(String),
    link_id UUID,
    class LowCardinality(String),
    start Date,
    value String CODEC(ZSTD(1)),
    clicks SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    visitors AggregateFunction(uniqCombined64(17), UInt64) CODEC(ZSTD(1))
)
ENGINE = AggregatingMergeTree
ORDER BY (workspace_id, dimension, link_id, class, start, value)
SETTINGS index_granularity = 512, index_granularity_bytes = 131072;

CREATE MATERIALIZED VIEW engine_to_counts TO engine_counts AS
SELECT workspace_id, key.1 AS unit, key.2 AS link_id, class, key.3 AS start, sum(hour_clicks) AS clicks,
       uniqCombined64MergeState(17)(hour_visitors) AS visitors
FROM
(
    SELECT workspace_id, link_id AS link, class, toStartOfHour(occurred_at) AS hour,
           count() AS hour_clicks, uniqCombined64State(17)(visitor) AS hour_visitors
    FROM clicks
    GROUP BY workspace_id, link, class, hour
)
ARRAY JOIN arrayFlatten(arrayMap(
    id -> [('hour', id, hour), ('day', id, toStartOfDay(hour))],
    [link, toUUID('00000000-0000-0000-0000-000000000000')])) AS key
GROUP BY workspace_id, key, class;

CREATE MATERIALIZED VIEW engine_to_breakdowns TO engine_breakdowns AS
SELECT workspace_id, dimension, id AS link_id, class, start, value, sum(day_clicks) AS clicks,
       uniqCombined64MergeState(17)(day_visitors) AS visitors
FROM
(
    SELECT workspace_id, link_id AS link, class, toDate(occurred_at) AS start, pair.1 AS dimension, pair.2 AS value,
           count() AS day_clicks, uniqCombined64State(17)(visitor) AS day_visitors
    FROM clicks
    ARRAY JOIN [('country', toString(country)), ('device_type', toString(device_type)),
        ('browser', toString(browser)), ('os', toString(os)), ('referrer', referrer), ('utm_source', utm_source),
        ('utm_medium', utm_medium), ('utm_campaign', utm_campaign), ('utm_term', utm_term),
        ('utm_content', utm_content)] AS pair
    GROUP BY workspace_id, link, class, start, dimension, value
)
ARRAY JOIN [link, toUUID('00000000-0000-0000-0000-000000000000')] AS id
GROUP BY workspace_id, dimension, id, class, start, value;

CREATE TABLE engine_queue
(
    click_id String, link_id String, workspace_id String, slug String, occurred_at DateTime64(3, 'UTC'), class String,
    visitor String, country String, device_type String, browser String, os String, referrer String,
    utm_source String, utm_medium String, utm_campaign String, utm_term String, utm_content String,
    external_click_id String, user_agent String, purpose String, again Bool
)
ENGINE = Kafka
SETTINGS kafka_broker_list = '{brokers}', kafka_topic_list = '{topic}', kafka_group_name = '{group}',
    kafka_format = 'JSONEachRow', kafka_num_consumers = 2, kafka_thread_per_consumer = 1,
    date_time_input_format = 'best_effort';

CREATE MATERIALIZED VIEW engine_to_clicks TO clicks AS
SELECT reinterpretAsUUID(toFixedString(substring(q.workspace_id, 15, 16), 16)) AS workspace_id,
       reinterpretAsUUID(toFixedString(substring(q.link_id, 15, 16), 16)) AS link_id,
       least(q.occurred_at, assumeNotNull(_timestamp_ms)) AS occurred_at,
       click_id, slug, class, reinterpretAsUInt64(reverse(unhex(q.visitor))) AS visitor,
       country, device_type, browser, os, referrer, utm_source, utm_medium, utm_campaign, utm_term, utm_content,
       external_click_id, user_agent, purpose, again,
       toUInt32(bitOr(65536, _partition)) AS src, _offset AS koff, assumeNotNull(_timestamp_ms) AS broker_ts
FROM engine_queue AS q;
