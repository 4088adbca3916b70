-- Several of final_range.sql.
SELECT u.place, u.finished_at, u.seq FROM ({ranges}) AS u {all_rows};
