-- Looks for the keys of @inbox_ids, adds the number of those that are there to @inbox_known, and answers
-- with them and their fingerprints.
-- At READ UNCOMMITTED, the first look sees what another transaction may still undo; and whether that is
-- the level cannot be asked for, since one may be set for a transaction alone. So in a session that is
-- not the store's own, what was seen is looked at once more with a lock, which waits for such a
-- transaction: by number, since a lock by key would include the gap before it, and so would one on a key
-- that is not there.
-- Converted, since MySQL takes a NULL in a variable for binary, and that for no JSON.
SET @inbox_seen = NULL;
{agg} SELECT JSON_ARRAYAGG(m.seq) INTO @inbox_seen
FROM {ids} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (message_key)
    ON m.handler = UNHEX(j.h) AND m.id = UNHEX(j.k);
SET @inbox_seqs = CONVERT(IF(@inbox_own = 1, NULL, @inbox_seen) USING utf8mb4);
SET @inbox_picked = NULL;
{agg} SELECT JSON_ARRAYAGG(seq) INTO @inbox_picked
FROM (
    SELECT m.seq
    FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
    /*!80000 FOR SHARE OF m */ /*M! LOCK IN SHARE MODE */
) AS t;
SET @inbox_seqs = CONVERT(IF(@inbox_own = 1, @inbox_seen, @inbox_picked) USING utf8mb4);
SET @inbox_known = @inbox_known + COALESCE(JSON_LENGTH(@inbox_seqs), 0);
SELECT m.handler, m.id, m.fingerprint
FROM {seqs} AS j STRAIGHT_JOIN {message} AS m FORCE INDEX (PRIMARY) ON m.seq = j.seq
{all_rows};
