SELECT COUNT(*) FROM {lead} WHERE {conditions};
