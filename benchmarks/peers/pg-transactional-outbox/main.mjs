// Measures pg-transactional-outbox as an inbox on PostgreSQL, with its polling listener. Takes the
// arguments of the other peers' programs and prints the same lines.

import { randomBytes, randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

import pg from 'pg';
import {
  DatabaseSetup,
  IsolationLevel,
  executeTransaction,
  getDisabledLogger,
  initializeMessageStorage,
  initializePollingMessageListener,
} from 'pg-transactional-outbox';

const { version } = createRequire(import.meta.url)('pg-transactional-outbox/package.json');

/** Tasks that send at the same time, as in the other peers' programs. */
const SENDERS = 2;

/** Messages in hand. */
const BATCH_SIZES = { default: undefined, 'batch 50': 50 };

const { values: text } = parseArgs({
  options: {
    url: { type: 'string' },
    messages: { type: 'string', default: '1000' },
    payload: { type: 'string', default: '1024' },
    batch: { type: 'string', default: '500' },
    handling: { type: 'string', default: '0' },
    settings: { type: 'string', default: 'default' },
  },
});
const messages = Number(text.messages);
const payload = Number(text.payload);
const batch = Number(text.batch);
const handling = Number(text.handling);
if (!text.url || !(text.settings in BATCH_SIZES)) {
  throw new Error('needs --url and known --settings');
}

const names = {
  outboxOrInbox: 'inbox',
  database: 'unused',
  schema: 'public',
  table: 'inbox',
  listenerRole: 'unused',
  nextMessagesName: 'next_inbox_messages',
};
const connection = { connectionString: text.url };
const config = {
  outboxOrInbox: 'inbox',
  dbHandlerConfig: { ...connection, max: 50 },
  dbListenerConfig: connection,
  settings: {
    dbSchema: names.schema,
    dbTable: names.table,
    nextMessagesFunctionName: names.nextMessagesName,
    ...(BATCH_SIZES[text.settings] && { nextMessagesBatchSize: BATCH_SIZES[text.settings] }),
  },
};
const logger = getDisabledLogger();
const pool = new pg.Pool({ ...connection, max: SENDERS });

/** Times the work and prints what it came to. */
async function measure(phase, work) {
  const start = process.hrtime.bigint();
  await work();
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  const rate = messages / seconds;
  const { settings } = text;
  const peer = 'pg-transactional-outbox';
  console.log(JSON.stringify({ peer, version, settings, phase, messages, seconds, rate }));
}

/** Stores messages one by one, which is all there is, but many in a transaction. */
async function send(store, number) {
  await executeTransaction(
    await pool.connect(),
    async (client) => {
      for (let i = 0; i < number; i++) {
        const message = {
          id: randomUUID(),
          aggregateType: 'bench',
          aggregateId: String(i),
          messageType: 'event',
          concurrency: 'parallel',
          payload: { text: randomBytes(payload).toString('base64url').slice(0, payload) },
        };
        await store(message, client);
      }
    },
    IsolationLevel.ReadCommitted,
  );
}

async function receive() {
  const store = initializeMessageStorage(config, logger);
  let next = 0;
  const sender = async () => {
    while (next < messages) {
      const number = Math.min(batch, messages - next);
      next += number;
      await send(store, number);
    }
  };
  await Promise.all(Array.from({ length: SENDERS }, sender));
}

async function drain() {
  let handled = 0;
  const handler = {
    aggregateType: 'bench',
    messageType: 'event',
    handle: async () => {
      if (handling > 0) {
        await sleep(handling);
      }
      handled += 1;
    },
  };
  const [shutdown] = initializePollingMessageListener(config, [handler], logger);
  while (handled < messages) {
    await sleep(5);
  }
  const sql = 'SELECT count(*)::integer AS n FROM inbox WHERE processed_at IS NOT NULL';
  while ((await pool.query(sql)).rows[0].n < messages) {
    await sleep(5);
  }
  return shutdown;
}

await pool.query(DatabaseSetup.dropAndCreateTable(names));
await pool.query(DatabaseSetup.createPollingFunction(names));
await pool.query(DatabaseSetup.setupPollingIndexes(names));
await measure('receive', receive);
let shutdown;
await measure('drain', async () => {
  shutdown = await drain();
});
await shutdown();
await pool.end();
