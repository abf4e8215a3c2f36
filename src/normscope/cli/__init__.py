"""The ``normscope`` command: thin over the API, one module per subcommand."""

from normscope.cli.main import main as main
