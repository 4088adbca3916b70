-- A page of records. The table that leads has the fewest rows of the wanted states.
SELECT {columns}, {content}
FROM {lead}
WHERE {conditions}
ORDER BY {seq} {direction} LIMIT {limit};
