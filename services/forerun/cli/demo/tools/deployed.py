"""The demo's tools on Kubernetes: what the pods of the chart with `demo.enabled` begin with.

`python -m forerun.cli.demo.tools.deployed project DIR` makes the project that coding sessions work on, on the worker;
`... policy --desk-url URL --project DIR --seed N --scale X --output FILE` writes the policy file that names the tools.
"""

import argparse
from pathlib import Path

from forerun.cli.demo.draws import Draws
from forerun.cli.demo.toolbench import make_project, policy_text


def main() -> None:
    """Makes what the command line asks for."""
    parser = argparse.ArgumentParser(prog="deployed", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    project = actions.add_parser("project")
    project.add_argument("folder", type=Path)
    policy = actions.add_parser("policy")
    policy.add_argument("--desk-url", required=True)
    policy.add_argument("--project", type=Path, required=True)
    policy.add_argument("--seed", type=int, required=True)
    policy.add_argument("--scale", type=float, required=True)
    policy.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    if options.action == "project":
        make_project(options.folder)
        return
    text = policy_text(
        desk_url=options.desk_url,
        project=options.project,
        # The graph's server runs in the worker, where nobody reads a log: the platform's own count is taken.
        log_file=Path("/dev/null"),
        draws=Draws(options.seed, options.scale),
    )
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
