"""What the checks share: a Prometheus to ask, and the dashboards to read."""
import json
import urllib.error
import urllib.parse
import urllib.request


class Prometheus:
    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}") as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def query(self, expr, at):
        """[(labels, value)] of an instant query; an error ends the check."""
        answer = self.get("/api/v1/query", query=expr, time=at)
        if answer["status"] != "success":
            raise SystemExit(f"{expr}: {answer['error']}")
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def read_exceptions(path):
    """{selector: (word, reason)} of exceptions.txt: `selector  # word: reason`."""
    entries = {}
    for line in open(path):
        if line.strip() and not line.startswith("#"):
            selector, _, note = line.partition("  # ")
            word, _, reason = note.strip().partition(": ")
            assert word in ("absent", "later", "rare") and reason, f"no reason: {line}"
            entries[selector.strip()] = (word, reason)
    return entries
