-- 1 if nothing was selected although something is due; 2 if that is because of runs.
SELECT IF(@inbox_claimed IS NULL AND ({due}), IF(@inbox_until < 0, 2, 1), 0);
