"""The commands: thin, each calls one public function and shows its result."""

from lengthen.cli.application import app, main

__all__ = ["app", "main"]
