-- A block of sequence numbers, behind all that were drawn before.
INSERT INTO {block} () VALUES ();
SET @inbox_block = LAST_INSERT_ID(), @inbox_first = LAST_INSERT_ID() * {block_size};
DELETE FROM {block} WHERE n = @inbox_block;
