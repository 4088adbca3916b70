DELETE w FROM {leases} AND w.queue = 1 AND w.handler = {handler};
