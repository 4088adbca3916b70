"""A worker of `inbox serve`: claims messages, handles each, and settles them. Python 3.9, no packages."""

import http.client, json, os, signal, threading, time, urllib.request

URL, TOKEN, LEASE = os.environ["INBOX_URL"], os.environ["INBOX_TOKEN"], 60
stopping = threading.Event()
for end in (signal.SIGTERM, signal.SIGINT):
    signal.signal(end, lambda *_: stopping.set())


def handle(message, lost):
    """Yours. An exception is a retry, a ValueError or KeyError (a bad message) a dead letter. Once `lost`
    is set, another worker may have the message: look at it before each effect, and stop."""
    print("charging for order", message["payload"]["order"])


def post(path, body):
    """Every operation is safe to repeat, so an outage is waited for; what is refused raises."""
    headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"}
    while True:
        try:
            request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
            return json.load(urllib.request.urlopen(request, timeout=90))
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", 503) != 503:  # an answer, and not that the store is away
                raise
        time.sleep(1)


def renew(lease, done, lost):
    try:
        while not done.wait(LEASE / 3):
            answer = post("/v1/extend", {"leases": [lease], "lease_seconds": LEASE})
            if answer["leases"][0]["status"] != "extended":
                return lost.set()
    except Exception:  # refused: the lease ends, too
        lost.set()
        raise


while not stopping.is_set():
    claim = {"handlers": ["billing"], "lease_seconds": LEASE, "wait_seconds": 2, "worker": "python"}
    for message in post("/v1/claim", claim)["messages"]:
        lease, done, lost = message["lease"], threading.Event(), threading.Event()
        threading.Thread(target=renew, args=(lease, done, lost), daemon=True).start()
        outcome = {"outcome": "processed"}
        try:
            handle(message, lost)
        except Exception as error:
            is_bad = isinstance(error, (ValueError, KeyError))
            # The text of a bad message's error may quote the payload, which belongs in no log.
            text = type(error).__name__ if is_bad else repr(error)
            outcome = {"outcome": "dead" if is_bad else "retry", "error": text}
        if not lost.is_set():
            post("/v1/settle", {"settlements": [{"lease": lease, **outcome}]})
        done.set()
