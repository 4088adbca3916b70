"""A worker of `inbox serve`: claims messages, handles each, and settles them. Python 3.9, no packages."""

import http.client, json, os, signal, threading, time, urllib.error, urllib.request

URL, TOKEN, LEASE = os.environ["INBOX_URL"], os.environ["INBOX_TOKEN"], 60
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())


def handle(message):
    """Yours. An exception is a retry, a ValueError or KeyError (a bad message) a dead letter."""
    print("charging for order", message["payload"]["order"])


def post(path, body):
    """Every operation is safe to repeat, so an outage is waited for; what is refused raises."""
    headers = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"}
    while True:
        try:
            request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
            return json.load(urllib.request.urlopen(request, timeout=90))
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(1)


def settle(lease, outcome, **fields):
    post("/v1/settle", {"settlements": [{"lease": lease, "outcome": outcome, **fields}]})


def renew(lease, done):
    while not done.wait(LEASE / 3):
        post("/v1/extend", {"leases": [lease], "lease_seconds": LEASE})


while not stopping.is_set():
    claim = {"handlers": ["billing"], "lease_seconds": LEASE, "wait_seconds": 2, "worker": "python"}
    for message in post("/v1/claim", claim)["messages"]:
        lease, done = message["lease"], threading.Event()
        threading.Thread(target=renew, args=(lease, done), daemon=True).start()
        try:
            handle(message)
            settle(lease, "processed")
        except (ValueError, KeyError) as error:
            settle(lease, "dead", error=repr(error))
        except Exception as error:
            settle(lease, "retry", error=repr(error))
        finally:
            done.set()
