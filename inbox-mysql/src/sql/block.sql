-- A block of sequence numbers, behind all that were drawn before.
INSERT INTO {block} () VALUES ();
SET @inbox_block = LAST_INSERT_ID();
DELETE FROM {block} WHERE n = @inbox_block;
SET @inbox_first = @inbox_block * {block_size};
