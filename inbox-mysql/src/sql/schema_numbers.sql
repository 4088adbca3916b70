-- The highest number that stands in another table than the messages', and the number that the next message
-- gets. In this order: a message that is stored in between has a number that is drawn already. As it is now:
-- MySQL shows for a day what it has shown once, unless told not to.
SELECT GREATEST(
    COALESCE((SELECT MAX(seq) FROM {work}), 0), COALESCE((SELECT MAX(seq) FROM {dead}), 0),
    COALESCE((SELECT MAX(seq) FROM {done}), 0)
);
SET @inbox_none = 0 /*!80000 ,
    @inbox_expiry = @@SESSION.information_schema_stats_expiry,
    SESSION information_schema_stats_expiry = 0 */;
SELECT CAST(COALESCE(MAX(auto_increment), 1) AS SIGNED) FROM information_schema.tables
WHERE {within} AND table_name = {name};
SET @inbox_none = 0 /*!80000 , SESSION information_schema_stats_expiry = @inbox_expiry */;
