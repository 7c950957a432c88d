# SPDX-License-Identifier: Apache-2.0
"""Write the generated pages of docs/reference: `python -m tools.reference`."""

from __future__ import annotations

from tools.reference.pages import FOLDER, PAGES

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
        print(FOLDER / name)
