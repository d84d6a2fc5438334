"""Isaac Lab HDF5: the layout of robomimic, with states as groups and the initial state of the scene.

`states/<kind>/<name>/…` has one row a step; `initial_state/…`, which has one row, is in the episode's extras. Files have
no rewards or ends of episodes; `success` and `seed` of a demo are in the metadata. `obs` is free: it often holds an
`actions` in another representation than the actions themselves. Written as `robomimic`, the file comes back as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wshard.convert._robomimic import Reader, layout

if TYPE_CHECKING:
    from wshard.convert._model import Probe

__all__ = ["Reader", "recognises"]


def recognises(probe: Probe) -> bool:
    """Whether it has demos as Isaac Lab records them."""
    return layout(probe) == "isaaclab"
