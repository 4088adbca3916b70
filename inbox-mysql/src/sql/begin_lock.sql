SELECT seq INTO @inbox_taken FROM {work} WHERE seq = @inbox_seq FOR UPDATE;
