"""What a document may cost: no real one comes near, and a hostile one ends in one clear line."""

from typing import Final

#: Of the document and every file that it refers to, together.
MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 1_000
#: Levels of nesting: far more than people write, far fewer than a recursive reader can take.
MAX_DEPTH: Final = 200
#: Values of one file: mappings, lists and what stands in them.
MAX_NODES: Final = 4_000_000
#: Values that the aliases of a YAML file stand for; each alias counts as all that it repeats.
MAX_ALIASED: Final = 500_000
#: References that lead to references, until one leads to something.
MAX_CHAIN: Final = 32
#: Members copied because something stands beside a reference, in the whole document.
MAX_MERGED: Final = 2_000_000
#: Characters of a text of the document that an error shows.
MAX_SHOWN: Final = 100
#: Paths, operations, and the parameters of all of them, each operation with those of its path item.
MAX_OPERATIONS: Final = 20_000
MAX_PARAMETERS: Final = 100_000
#: Schemas looked at to answer all questions about a document's values; members and constants cost a part of one.
MAX_LOOKED_AT: Final = 1_000_000
