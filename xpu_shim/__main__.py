"""`python -m xpu_shim`: the same as the `xpu-shim` command."""

from xpu_shim.cli import main

raise SystemExit(main())
