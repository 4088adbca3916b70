SELECT seq FROM {message} WHERE handler = {handler} AND id = {id};
