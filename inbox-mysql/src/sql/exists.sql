-- Answers with 1 if a complete inbox of this version is there, else with 0. The table that says so is read
-- once it is known to be there.
SET @inbox_complete = (
    SELECT COUNT(*) = {number} FROM (
        SELECT CONCAT_WS(' ', table_name, 'engine', LOWER(engine)) AS line
        FROM information_schema.tables WHERE {within}
        UNION ALL
        SELECT CONCAT_WS(
            ' ', table_name, column_name,
            CASE
                WHEN data_type IN ('bigint', 'tinyint') THEN data_type
                WHEN column_name = 'payload' AND data_type = 'longtext' THEN 'json'
                ELSE column_type
            END,
            IF(is_nullable = 'YES', 'null', 'not null'),
            IF(extra LIKE '%auto_increment%', 'auto_increment', NULL)
        )
        FROM information_schema.columns WHERE {within}
        UNION ALL
        SELECT CONCAT_WS(
            ' ', table_name, IF(non_unique = 0, 'unique', 'index'), index_name, seq_in_index,
            column_name, sub_part
        )
        FROM information_schema.statistics WHERE {within}
    ) AS present
    WHERE CAST(CONVERT(line USING utf8mb4) AS BINARY) IN (
{lines}
    )
);
SET @inbox_query = IF(@inbox_complete, '{mark}', 'SELECT 0');
PREPARE inbox_query FROM @inbox_query;
EXECUTE inbox_query;
DEALLOCATE PREPARE inbox_query;
