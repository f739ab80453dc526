-- Since when a message waits for Kafka. A row has it from Postgres, also from programs that do not know the column.
ALTER TABLE outbox ADD COLUMN created_at timestamptz NOT NULL DEFAULT now();
