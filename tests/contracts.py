"""A contract of our own for import-linter: a room inside a room is entered by its door.

    outsize/raster/reading/__init__.py    the door: whoever may import the room imports this; its own files do not
                          /scene.py       behind the door: for files of raster/reading alone

`protected` contracts say the same, one for each room; this one holds for every room, also for one made tomorrow.
"""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class Doors(Contract):
    """Nobody outside a sub-package imports its other files; `open_rooms` are those not yet so far."""

    type_name = "doors"

    open_rooms = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look who imports each sub-package, and the modules in it."""
        inside = [module.rpartition(".")[0] for module in graph.modules if module.count(".") >= 3]
        rooms = sorted(set(inside) - set(self.open_rooms))  # type: ignore[call-overload]
        broken = [
            (importer, behind, graph.get_import_details(importer=importer, imported=behind))
            for room in rooms
            for behind in (room, *sorted(graph.find_children(room)))
            for importer in sorted(graph.find_modules_that_directly_import(behind))
            if importer.startswith(f"{room}.") == (behind == room) and importer != room
        ]
        stale = sorted(set(self.open_rooms) - set(inside))  # type: ignore[call-overload]
        return ContractCheck(kept=not broken and not stale, metadata={"broken": broken, "stale": stale})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import that goes past a door."""
        for importer, imported, details in check.metadata["broken"]:
            is_inside = importer.startswith(f"{imported}.")
            remedy = "take it from its own file" if is_inside else f"ask {imported.rpartition('.')[0]} for it"
            lines = ", ".join(str(each["line_number"]) for each in details)
            output.print_error(f"{importer} imports {imported} (l. {lines}): {remedy}", bold=False)
        for room in check.metadata["stale"]:
            output.print_error(f"open_rooms names {room}, which is no room", bold=False)
