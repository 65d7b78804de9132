"""The research agent: answers a question about the ferry company and leaves a note on the ticket.

Four recurring workflows. All begin with a search for the id in the user's words and the best hits; then each follows
the references of what it read. What varies: the wording of the search, how many hits are read, detours, and the branch
that the figures of the warehouse decide.
"""

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

from forerun.cli.demo.agents.script import Call, Message, Observation, Script, Task, Whim, list_at, text_at
from forerun.cli.demo.draws import Kind, fraction
from forerun.cli.demo.library import Library
from forerun.core.canonical import JsonValue

T = TypeVar("T")

AGENT = "research"
TOOLS = ("search", "fetch", "lookup_entity", "related", "warehouse", "add_note", "list_notes")

_QUESTIONS = {
    "incident": "Ticket {ticket}: what is behind {subject}, and is the part's supplier to blame?",
    "supplier": "Ticket {ticket}: should we renew the contract with {subject}?",
    "vessel": "Ticket {ticket}: what must the yard look at when {subject} comes in?",
    "bulletin": "Ticket {ticket}: is {subject} still needed, or can we withdraw it?",
}
_DELIVERIES = "SELECT SUM(ordered) AS ordered, SUM(late) AS late FROM deliveries WHERE supplier = ?"
_LOSSES = "SELECT COUNT(*) AS incidents, SUM(hours_lost) AS hours FROM incidents WHERE component = ?"
_LATE_SHARE = 0.2
_HOURS_THAT_MATTER = 18.0


def tasks(library: Library, seed: int, count: int) -> list[Task]:
    """The first `count` tasks of a seed: every document of the four kinds is the subject of at most one.

    Raises:
        ValueError: The corpus has fewer subjects than that.
    """
    subjects = [document for document in library.documents.values() if document.kind in _QUESTIONS]
    shuffled = sorted(subjects, key=lambda document: fraction(seed, "subject", document.id))
    if count > len(shuffled):
        raise ValueError(f"the corpus has {len(shuffled)} subjects, {count} were asked for")
    return [
        Task(
            session=(ticket := f"R{number:02d}"),
            agent=AGENT,
            user_text=_QUESTIONS[document.kind].format(ticket=ticket, subject=document.id),
            subject=document.id,
            model=Kind.RESEARCH_MODEL,
        )
        for number, document in enumerate(shuffled[:count], start=1)
    ]


def script(task: Task, seed: int, kind: str) -> Script:
    """The model's part in one session. `kind` is the kind of the task's subject."""
    reading = Reading(task, Whim(seed, task.session))
    hits = yield from reading.search()
    workflow = {"incident": _incident, "supplier": _supplier, "vessel": _vessel, "bulletin": _bulletin}[kind]
    yield from workflow(task.subject, reading, hits)


Found: TypeAlias = dict[str, JsonValue]
Part: TypeAlias = Generator[Message, Sequence[Observation], T]


class Reading:
    """What the model has read in this session, and its habits of reading."""

    def __init__(self, task: Task, whim: Whim) -> None:
        self.ticket = task.session
        self._subject = task.subject
        self._whim = whim
        self._read: dict[str, Found] = {}
        self.others: list[Found] = []

    def search(self) -> Part[list[str]]:
        """Searches for the subject, now and then with a word of its own beside it. Ids of the hits, best first."""
        query = self._subject
        if self._whim.happens("wording", 0.1):
            query = f"{self._subject} {self._whim.pick('words', ('history', 'cause', 'repair', 'contract'))}"
        (observed,) = yield Message("I search the files first.", [Call("search", {"q": query})])
        return [text_at(hit, "id") for hit in list_at(observed.value(), "hits")]

    def hits(self, hits: Sequence[str]) -> Part[Found]:
        """Reads the best two hits, sometimes three. The first one is the subject's own document."""
        count = 3 if self._whim.happens("third hit", 0.15) else 2
        return (yield from self.documents("I read the best hits.", hits[:count]))[hits[0]] if hits else {}

    def documents(self, text: str, wanted: Sequence[str], *others: Call) -> Part[dict[str, Found]]:
        """Reads what it has not read yet, together with other calls of the same message."""
        fetched = [document for document in dict.fromkeys(wanted) if document and document not in self._read]
        calls = [*(Call("fetch", {"id": document}) for document in fetched), *others]
        answers = (yield Message(text, calls)) if calls else ()
        for document, answer in zip(fetched, answers, strict=False):
            self._read[document] = answer.value()
        self.others = [answer.value() for answer in answers[len(fetched) :]]
        return {document: self._read.get(document, {}) for document in wanted}

    def conclude(self, finding: str, wanted: Sequence[str], *others: Call) -> Part[None]:
        """Reads the last pages, writes the finding on the ticket, and reads the ticket back, all in one message."""
        closing = self._whim.pick("closing", ("No action.", "Please confirm.", "Closing."))
        note: dict[str, JsonValue] = {"ticket": self.ticket, "text": f"{self._subject}: {finding} {closing}"}
        ticket = [Call("add_note", note), Call("list_notes", {"ticket": self.ticket})]
        yield from self.documents("I look that up for the record and write my finding down.", wanted, *others, *ticket)

    def detour(self, document: Found) -> Part[None]:
        """Now and then the model searches for something of its own before it goes on."""
        if self._whim.happens("detour", 0.12):
            words = text_at(document, "title").rpartition(": ")[2]
            yield Message("I want to see whether this is known elsewhere.", [Call("search", {"q": words})])


def _incident(subject: str, reading: Reading, hits: Sequence[str]) -> Part[None]:
    incident = yield from reading.hits(hits)
    component, bulletin = text_at(incident, "refs", "component"), text_at(incident, "refs", "bulletin")
    sheets = yield from reading.documents("Now the part and its bulletin.", [component, bulletin])
    yield from reading.detour(sheets[component])
    supplier = text_at(sheets[component], "refs", "supplier")
    deliveries = Call("warehouse", {"sql": _DELIVERIES, "values": [supplier]})
    record = (yield from reading.documents("Who delivers it, and how well?", [supplier], deliveries))[supplier]
    if _late(reading.others):
        contact = text_at(record, "refs", "contact")
        wider = Call("related", {"ticket": reading.ticket, "id": supplier})
        finding = f"{supplier} is late too often; {contact} should speak to them about {component}."
        yield from reading.conclude(finding, [contact], wider)
    else:
        owner = text_at(incident, "refs", "owner")
        yield from reading.conclude(f"{component} failed under {bulletin}; {owner} should follow it.", [owner])


def _supplier(subject: str, reading: Reading, hits: Sequence[str]) -> Part[None]:
    record = yield from reading.hits(hits)
    component = text_at(record, "refs", "components", 0)
    wider = Call("related", {"ticket": reading.ticket, "id": subject})
    sheet = (yield from reading.documents("What do they deliver?", [component], wider))[component]
    yield from reading.detour(sheet)
    bulletin = text_at(sheet, "refs", "bulletin")
    deliveries = Call("warehouse", {"sql": _DELIVERIES, "values": [subject]})
    yield from reading.documents("How well do they deliver?", [bulletin], deliveries)
    if _late(reading.others):
        incidents = [text_at(sheet, "refs", "incidents", 0), text_at(sheet, "refs", "incidents", 1)]
        finding = f"do not renew; {' and '.join(filter(None, incidents))} were on {component}."
        yield from reading.conclude(finding, incidents)
    else:
        contact = text_at(record, "refs", "contact")
        yield from reading.conclude(f"renew; {contact} signs.", [contact])


def _vessel(subject: str, reading: Reading, hits: Sequence[str]) -> Part[None]:
    vessel = yield from reading.hits(hits)
    incidents = [text_at(vessel, "refs", "incidents", 0), text_at(vessel, "refs", "incidents", 1)]
    found = yield from reading.documents("What happened on board?", incidents)
    yield from reading.detour(found[incidents[0]])
    component = text_at(found[incidents[0]], "refs", "component")
    losses = Call("warehouse", {"sql": _LOSSES, "values": [component]})
    sheet = (yield from reading.documents("How bad is this part?", [component], losses))[component]
    if _hours(reading.others) > _HOURS_THAT_MATTER:
        bulletin = text_at(sheet, "refs", "bulletin")
        entity = Call("lookup_entity", {"ticket": reading.ticket, "id": bulletin})
        yield from reading.conclude(f"open {component} and follow {bulletin}.", [bulletin], entity)
    else:
        owner = text_at(vessel, "refs", "owner")
        yield from reading.conclude(f"{owner} decides about {component}.", [owner])


def _bulletin(subject: str, reading: Reading, hits: Sequence[str]) -> Part[None]:
    bulletin = yield from reading.hits(hits)
    component, origin = text_at(bulletin, "refs", "components", 0), text_at(bulletin, "refs", "origin")
    found = yield from reading.documents("What is it about?", [component, origin])
    yield from reading.detour(found[component])
    supplier = text_at(found[component], "refs", "supplier")
    losses = Call("warehouse", {"sql": _LOSSES, "values": [component]})
    yield from reading.documents("Does it still happen?", [supplier], losses)
    if _hours(reading.others) > _HOURS_THAT_MATTER:
        latest = text_at(found[component], "refs", "incidents", 1)
        yield from reading.conclude(f"keep it: {component} still costs hours, see {latest}.", [latest])
    else:
        owner = text_at(found[origin], "refs", "owner")
        yield from reading.conclude(f"{owner} may withdraw it.", [owner])


def _row(others: Sequence[Found]) -> Found:
    rows = list_at(others[0], "rows") if others else []
    return rows[0] if rows and isinstance(rows[0], dict) else {}


def _number(row: Found, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _late(others: Sequence[Found]) -> bool:
    row = _row(others)
    return _number(row, "late") > _LATE_SHARE * _number(row, "ordered")


def _hours(others: Sequence[Found]) -> float:
    return _number(_row(others), "hours")
