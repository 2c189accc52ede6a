"""Documents made at random: the shape of OpenAPI, and at every place now and then a value of any other type."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_ODD = ("", "x", "name", "/", "..", "a b", "{", "}", "{x}", "*", "**", "%", "?", "#", ";", "\x00", "\n", "\u202e", "\\")
_CODE = ("');evil();('", '"""', "*/", "</script>", "\u2028", "${x}", "`", "\U0001f600")
_WORDS = ("self", "class", "constructor", "__proto__", "Authorization", "Content-Type", "access_token", "id", "9")
_TEXTS = st.sampled_from([*_ODD, *_CODE, *_WORDS]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_COMPONENTS_OF = ("schemas", "parameters", "responses", "requestBodies", "pathItems", "securitySchemes")
_PLACES = (
    "#",
    "#/",
    "#/paths",
    "#/paths/~1a~1{x}",
    "#/paths/~1a~1{x}/get",
    "other.json",
    "../other.json",
    "#anchor",
    "%",
)
_REFERENCES = st.sampled_from(
    [*_PLACES, "https://a.example/x", *(f"#/components/{kind}/{name}" for kind in _COMPONENTS_OF for name in "ab")]
)
_SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 10**20) | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS
)
ANYTHING = st.recursive(
    _SCALARS | st.builds(lambda to: {"$ref": to}, _REFERENCES | _SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _mostly(
    strategy: st.SearchStrategy[Any], seldom: st.SearchStrategy[Any], one_in: int = 15
) -> st.SearchStrategy[Any]:
    return st.integers(1, one_in).flatmap(lambda dice: seldom if dice == one_in else strategy)


def _object(*needed: str, **members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make an object of these members, the ``needed`` ones nearly always."""
    wild = {name.rstrip("_"): _mostly(value, ANYTHING) for name, value in members.items()}
    there = {name: wild.pop(name) for name in needed}
    return _mostly(st.fixed_dictionaries(there, optional=wild), ANYTHING, 30)


def _or_reference(strategy: st.SearchStrategy[Any], kind: str) -> st.SearchStrategy[Any]:
    named = st.sampled_from(["a", "b"]).map(lambda name: {"$ref": f"#/components/{kind}/{name}"})
    any_ = st.builds(lambda to, more: {"$ref": to, **more}, _REFERENCES, st.just({}) | st.just({"x": 1}))
    return _mostly(strategy, _mostly(named, any_, 3), 4)


def _map(keys: st.SearchStrategy[str], values: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Any]:
    return _mostly(st.dictionaries(keys, values, max_size=size), ANYTHING, 20)


_NAMES = st.sampled_from(["a", "b", "x", "id", "limit", "filter[eq]", "X-One", "Authorization"]) | _TEXTS
_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])


def _schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _or_reference(
        _object(
            type=_TYPES | st.lists(_TYPES, max_size=3),
            properties=_map(_NAMES, inner),
            required=st.lists(_NAMES, max_size=3),
            items=inner,
            enum=st.lists(ANYTHING, max_size=3),
            const=ANYTHING,
            default=ANYTHING,
            format=st.sampled_from(["uuid", "date", "binary"]) | _TEXTS,
            pattern=st.sampled_from(["^[a-z]+$", "(", "(a+)+$", "^\\d{3}$", "[", "^" + "(a|" * 9]) | _TEXTS,
            nullable=st.booleans(),
            description=_TEXTS,
            allOf=st.lists(inner, max_size=2),
            anyOf=st.lists(inner, max_size=2),
            oneOf=st.lists(inner, max_size=2),
            additionalProperties=inner,
            minLength=ANYTHING,
            maximum=ANYTHING,
        ),
        "schemas",
    )


SCHEMAS = _schema(_schema(_schema(st.just({}) | ANYTHING)))
_MEDIA = st.sampled_from(
    ["application/json", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain", "*/*", "a/b+json"]
)
_CONTENT = _map(_MEDIA | _TEXTS, _object(schema=SCHEMAS, example=ANYTHING, encoding=ANYTHING), 2)
_PARAMETERS = st.lists(
    _or_reference(
        _object(
            "name",
            "in",
            name=_NAMES,
            in_=st.sampled_from(["path", "query", "header", "cookie", "querystring", "body"]),
            required=st.booleans(),
            schema=SCHEMAS,
            content=_CONTENT,
            style=st.sampled_from(
                ["simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject"]
            ),
            explode=st.booleans(),
            allowReserved=st.booleans(),
            allowEmptyValue=st.booleans(),
            deprecated=st.booleans(),
            description=_TEXTS,
        ),
        "parameters",
    ),
    max_size=4,
)
_BODY = _or_reference(_object("content", content=_CONTENT, required=st.booleans(), description=_TEXTS), "requestBodies")
_RESPONSES = _map(
    st.sampled_from(["200", "201", "2XX", "default", "404"]) | _TEXTS,
    _or_reference(_object(description=_TEXTS, content=_CONTENT, headers=ANYTHING), "responses"),
    2,
)
_SECURITY = st.lists(_map(_NAMES, st.lists(_TEXTS, max_size=2), 2), max_size=2)
_SERVERS = st.lists(
    _object(
        "url",
        url=st.sampled_from(
            ["https://api.example", "https://api.example/v1/", "/v1", "http://127.0.0.1:1", "https://{a}.example"]
        )
        | _TEXTS,
        variables=_map(_NAMES, _object(default=_TEXTS, enum=st.lists(_TEXTS, max_size=2)), 2),
        name=_TEXTS,
    ),
    max_size=2,
)
_OPERATION = _object(
    operationId=_NAMES,
    summary=_TEXTS,
    description=_TEXTS,
    tags=st.lists(_TEXTS, max_size=2),
    parameters=_PARAMETERS,
    requestBody=_BODY,
    responses=_RESPONSES,
    security=_SECURITY,
    servers=_mostly(st.just([]), _SERVERS),
    deprecated=st.booleans(),
    **{"x-forge-require-confirmation": _TEXTS},
)
_METHODS = _mostly(
    st.sampled_from(["get", "put", "post", "delete", "head", "patch"]), st.sampled_from(["options", "trace", "query"])
)
_ITEM = _or_reference(
    st.builds(
        lambda rest, operations: {**rest, **operations} if isinstance(rest, dict) else rest,
        _object(parameters=_PARAMETERS, summary=_TEXTS, **{"x-other": ANYTHING}),
        st.dictionaries(_METHODS, _OPERATION, min_size=1, max_size=3),
    ),
    "pathItems",
)
_PATHS = st.dictionaries(
    st.sampled_from(
        ["/a/{x}", "/a/{x}/", "/a", "/a/b", "/a/{x}.json", "/{a}{b}", "/a#f", "/a?b=c", "/a/{x}:do", "//", "/"]
    )
    | _TEXTS.map("/".__add__),
    _ITEM,
    min_size=1,
    max_size=3,
)
_SCHEMES = _object(
    type=st.sampled_from(["http", "apiKey", "oauth2", "openIdConnect", "mutualTLS"]),
    scheme=st.sampled_from(["bearer", "Basic", "digest"]),
    name=_NAMES,
    in_=st.sampled_from(["header", "query", "cookie"]),
    flows=ANYTHING,
)


def _named(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"a": values, "b": values})


_COMPONENTS = _object(
    "schemas",
    "parameters",
    "requestBodies",
    "responses",
    "pathItems",
    schemas=_named(SCHEMAS),
    parameters=_named(_PARAMETERS.map(lambda found: found[0] if found else {})),
    requestBodies=_named(_BODY),
    responses=_named(ANYTHING),
    pathItems=_named(_ITEM),
    securitySchemes=_map(_NAMES, _SCHEMES, 2),
)
DOCUMENTS = st.builds(
    lambda version, paths, rest: {"openapi": version, "paths": paths, **(rest if isinstance(rest, dict) else {})},
    st.sampled_from(["3.0.3", "3.1.0", "3.2.0"]),
    _PATHS,
    _object(
        "components",
        info=_object(title=_TEXTS, version=_TEXTS, description=_TEXTS),
        servers=_SERVERS,
        security=_SECURITY,
        tags=ANYTHING,
        components=_COMPONENTS,
        webhooks=ANYTHING,
    ),
)
