-- Whether a complete inbox is there: all of its tables with their columns, its indexes and its triggers.
SELECT
    (
        SELECT count(*) FROM sqlite_master
        WHERE type = 'table' AND lower(name) IN (
            '{inbox}_message', '{inbox}_state', '{inbox}_count', '{inbox}_paused', '{inbox}_meta'
        )
    ) = 5
    AND (
        SELECT count(*) FROM sqlite_master
        WHERE type = 'index' AND lower(name) IN (
            '{inbox}_claim', '{inbox}_leased', '{inbox}_open', '{inbox}_run', '{inbox}_head',
            '{inbox}_final', '{inbox}_dead', '{inbox}_blocking'
        )
    ) = 8
    AND (
        SELECT count(*) FROM sqlite_master
        WHERE type = 'trigger' AND lower(name) IN (
            '{inbox}_accepted', '{inbox}_purged', '{inbox}_recounted', '{inbox}_reheaded',
            '{inbox}_run_lost', '{inbox}_removed', '{inbox}_refilled'
        )
    ) = 7
    AND (
        SELECT count(*) FROM pragma_table_info('{inbox}_message')
        WHERE name IN (
            'seq', 'handler', 'id', 'kind', 'content_type', 'headers', 'ordering_key',
            'fingerprint', 'accepted_at', 'first_due_at', 'payload_bytes', 'payload'
        )
    ) = 12
    AND (
        SELECT count(*) FROM pragma_table_info('{inbox}_state')
        WHERE name IN (
            'seq', 'handler', 'ordering_key', 'state', 'claimable', 'visible_at', 'due_at',
            'lease_until', 'token', 'started', 'finished', 'replays', 'worker', 'leased_at',
            'finished_at', 'last_error', 'result', 'has_content', 'blocks', 'history'
        )
    ) = 20
    AND (
        SELECT count(*) FROM pragma_table_info('{inbox}_count')
        WHERE name IN (
            'handler', 'unfinished', 'processed', 'dead', 'discarded'
        )
    ) = 5
    AND (
        SELECT count(*) FROM pragma_table_info('{inbox}_paused')
        WHERE name IN (
            'handler'
        )
    ) = 1
    AND (
        SELECT count(*) FROM pragma_table_info('{inbox}_meta')
        WHERE name IN (
            'marker', 'version', 'works_from', 'revision'
        )
    ) = 4 AS complete;
