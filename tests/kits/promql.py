"""The part of PromQL that the alerts use, over scrapes of given times.

Samples come from Prometheus' text format. A vector is {labels: value}, labels
a frozenset of pairs; `__name__` is dropped, as in results of Prometheus.
"""

import re

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d[\d.e+]*)(?P<unit>[smh])?|(?P<string>\"[^\"]*\")"
    r"|(?P<op>==|!=|=~|>=|<=|[-+*/(){}\[\],=<>])|(?P<name>:?[A-Za-z_][\w:]*))"
)
UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}
SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", re.M)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text, **labels):
    """The samples of a scrape: (name, labels, value), with more labels."""
    for name, inside, value in SAMPLE.findall(text):
        pairs = {**dict(LABEL.findall(inside)), **labels}
        yield name, frozenset(pairs.items()), float(value)


class Prometheus:
    """Scrapes by time, and what an expression gives at the last of them."""

    def __init__(self):
        self.series = {}
        self.now = 0.0

    def scrape(self, time, text, **labels):
        self.now = time
        for name, pairs, value in samples(text, **labels):
            history = self.series.setdefault((name, pairs), [])
            history.append((time, value))

    def record(self, name, vector):
        for pairs, value in vector.items():
            history = self.series.setdefault((name, pairs), [])
            history.append((self.now, value))

    def query(self, expression):
        tokens = []
        position = 0
        while expression[position:].strip():
            found = TOKEN.match(expression, position)
            assert found, expression[position:]
            tokens.append(found)
            position = found.end()
        parser = Parser(self, tokens)
        value = parser.either()
        assert not parser.tokens, "the expression goes on"
        return value


class Parser:
    def __init__(self, prometheus, tokens):
        self.prometheus, self.tokens = prometheus, tokens

    def text(self):
        return self.tokens[0].group().strip() if self.tokens else None

    def take(self, *wanted):
        if self.text() in wanted:
            return self.tokens.pop(0).group().strip()
        return None

    def need(self, wanted):
        assert self.take(wanted), f"{wanted} expected at {self.text()}"

    def either(self):
        left = self.but()
        while self.take("or"):
            left = {**self.but(), **left}
        return left

    def but(self):
        left = self.compared()
        while self.take("unless"):
            right = self.compared()
            left = {k: v for k, v in left.items() if k not in right}
        return left

    def compared(self):
        left = self.product()
        compare = self.take("==", ">", "<", ">=", "<=")
        if compare is None:
            return left
        right = self.product()
        holds = {
            "==": lambda v: v == right,
            ">": lambda v: v > right,
            "<": lambda v: v < right,
            ">=": lambda v: v >= right,
            "<=": lambda v: v <= right,
        }[compare]
        return {k: v for k, v in left.items() if holds(v)}

    def product(self):
        left = self.atom()
        while operation := self.take("*", "/"):
            right = self.atom()
            factor = right if operation == "*" else 1 / right
            left = {k: v * factor for k, v in left.items()}
        return left

    def atom(self):
        token = self.tokens.pop(0)
        if token["number"]:
            return float(token["number"])
        if token["op"] == "(":
            value = self.either()
            self.need(")")
            return value
        name = token["name"]
        if name == "sum":
            return self.sum()
        if name in ("rate", "increase"):
            self.need("(")
            increases, seconds = self.increases(self.tokens.pop(0)["name"])
            self.need(")")
            per = seconds if name == "rate" else 1
            return {k: v / per for k, v in increases.items()}
        if name == "absent":
            self.need("(")
            vector = self.either()
            self.need(")")
            return {} if vector else {frozenset(): 1.0}
        return self.instant(name)

    def sum(self):
        by = []
        if self.take("by"):
            self.need("(")
            while not self.take(")"):
                by.append(self.tokens.pop(0).group().strip())
                self.take(",")
        self.need("(")
        vector = self.either()
        self.need(")")
        totals = {}
        for pairs, value in vector.items():
            key = frozenset(pair for pair in pairs if pair[0] in by)
            totals[key] = totals.get(key, 0) + value
        return totals

    def selected(self, name):
        matchers = []
        if self.take("{"):
            while not self.take("}"):
                label = self.tokens.pop(0)["name"]
                kind = self.tokens.pop(0)["op"]
                value = self.tokens.pop(0)["string"][1:-1]
                assert kind in ("=", "=~")
                value = value if kind == "=~" else re.escape(value)
                matchers.append((label, value))
                self.take(",")
        return {
            pairs: history
            for (known, pairs), history in self.prometheus.series.items()
            if known == name
            and all(
                re.fullmatch(value, dict(pairs).get(label, ""))
                for label, value in matchers
            )
        }

    def seconds(self):
        token = self.tokens.pop(0)
        return float(token["number"]) * UNITS[token["unit"]]

    def instant(self, name):
        chosen = self.selected(name)
        at = self.prometheus.now
        if self.take("offset"):
            at -= self.seconds()
        found = {}
        for pairs, history in chosen.items():
            # Samples older than five minutes are stale.
            known = [v for t, v in history if at - 300 < t <= at]
            if known:
                found[pairs] = known[-1]
        return found

    def increases(self, name):
        """Without Prometheus' extrapolation to the ends of the window."""
        chosen = self.selected(name)
        self.need("[")
        seconds = self.seconds()
        self.need("]")
        since = self.prometheus.now - seconds
        found = {}
        for pairs, history in chosen.items():
            values = [v for t, v in history if t >= since]
            if len(values) > 1:
                steps = zip(values, values[1:], strict=False)
                # A counter that fell started again.
                found[pairs] = sum(b - a if b >= a else b for a, b in steps)
        return found, seconds
