"""A small Api, made by hand: what the parts that write are tried on without reading a document."""

from __future__ import annotations

from broker.specgen.model import Api, Note, Operation, RouteEntry, Security, Told


def operation(route: RouteEntry, identifier: str) -> Operation:
    text = route if isinstance(route, str) else route["route"]
    method, _, path = text.partition(" ")
    return Operation(
        pointer=f"#/paths/{identifier}",
        id=identifier,
        identifier=identifier,
        tool=identifier,
        method=method,
        template=path,
        route=route,
    )


def told(label: str, status: str = "carried", *notes: Note, id_: str = "") -> Told:
    return Told(pointer="#/paths/" + label.replace("/", "~1"), label=label, id=id_, status=status, notes=notes)


def api(**changed) -> Api:
    listed = {"route": "GET /v1/pets", "query": {"limit": "int"}}
    return Api(
        **{
            "title": "Pets",
            "source": "pets.json",
            "version": "3.0.3",
            "sha256": "ab" * 32,
            "origin": "https://api.example.com",
            "catalog": (listed, "GET /v1/pets/*", "DELETE /v1/pets/*"),
            "operations": (operation(listed, "list_pets"), operation("GET /v1/pets/*", "get_pet")),
            "told": (
                told("GET /pets", id_="list_pets"),
                told("GET /pets/{id}", "limited", Note("limit", "#/x", "a value holds no slash", "--slashes id")),
                told("DELETE /pets/{id}", "left-out", Note("warn", "", "--method leaves it out")),
                told("TRACE /pets", "not-carried", Note("stop", "#/y", "TRACE is no method of a route")),
            ),
            "security": Security(placement={"scheme": "bearer"}),
            **changed,
        }
    )
