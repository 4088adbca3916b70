-- Whether nothing was selected although something is due.
SELECT @inbox_claimed IS NULL AND ({due});
