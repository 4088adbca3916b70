// A worker of `inbox serve`: claims messages, handles each, and settles them. Node 20, no packages.

type Message = { payload: unknown; lease: object };
const URL = process.env.INBOX_URL, TOKEN = process.env.INBOX_TOKEN, LEASE = 60;
let stopping = false;
for (const end of ["SIGTERM", "SIGINT"]) process.on(end, () => (stopping = true));

class BadMessage extends Error {}

/** Yours. An error is a retry, a BadMessage a dead letter. Once `lost` is aborted, another worker may
 * have the message: look at it before each effect, and stop. */
async function handle(message: Message, lost: AbortSignal): Promise<void> {
  const { order } = message.payload as { order?: number };
  if (order === undefined) throw new BadMessage("no order");
  console.log("charging for order", order);
}

/** Every operation is safe to repeat, so an outage is waited for; what is refused throws. */
async function post<T>(path: string, body: object): Promise<T> {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  for (;;) {
    const request = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(90_000) };
    const response = await fetch(URL + path, request).catch(() => undefined);
    const answer = await response?.json().catch(() => undefined);
    if (response?.ok && answer) return answer as T;
    if (response && !response.ok && response.status !== 503) throw new Error(JSON.stringify(answer));
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

const settle = (lease: object, outcome: string, fields: object = {}) =>
  post("/v1/settle", { settlements: [{ lease, outcome, ...fields }] });

while (!stopping) {
  const claim = { handlers: ["billing"], lease_seconds: LEASE, wait_seconds: 2, worker: "typescript" };
  for (const message of (await post<{ messages: Message[] }>("/v1/claim", claim)).messages) {
    const lost = new AbortController();
    const renew = async () => {
      const extend = { leases: [message.lease], lease_seconds: LEASE };
      const { leases } = await post<{ leases: { status: string }[] }>("/v1/extend", extend);
      if (leases[0]?.status !== "extended") lost.abort();
    };
    const renewing = setInterval(() => void renew().catch(console.error), (LEASE / 3) * 1000);
    const failure = await handle(message, lost.signal).then(() => undefined, (error: unknown) => error);
    const outcome = failure instanceof BadMessage ? "dead" : failure ? "retry" : "processed";
    if (!lost.signal.aborted) await settle(message.lease, outcome, failure ? { error: String(failure) } : {});
    clearInterval(renewing);
  }
}
