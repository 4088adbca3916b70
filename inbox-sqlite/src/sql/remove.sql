DROP TABLE IF EXISTS {inbox}_message;
DROP TABLE IF EXISTS {inbox}_state;
DROP TABLE IF EXISTS {inbox}_count;
DROP TABLE IF EXISTS {inbox}_paused;
DROP TABLE IF EXISTS {inbox}_meta;
