-- Personal fields of a conversion go with its click. What stays is the digest of the click id, which refuses a second
-- conversion, and when and on which link it was.
CREATE INDEX conversions_personal ON conversions (clicked_at) WHERE click_id IS NOT NULL;
