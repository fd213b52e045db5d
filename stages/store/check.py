"""`bag check SOURCE`: report in seconds what the pipeline will do with a model before it is added.

bag check models/llama-3.1-8b
bag check org/name@0123456789abcdef0123456789abcdef01234567 --template "Q: {op1}{symbol}{op2}="
"""

from stages.store.check_options import parsed


def main(arguments: list[str]) -> None:
    options = parsed("check", arguments)
    from stages.store import kernels  # only here: pydantic is slow to import, and torch slower

    kernels.begin_early(options)
    from stages.store.description import checked

    report = checked(options)
    print("\n".join(report.lines))
    for problem in report.problems:
        print(f"But: {problem}")
    if not report.problems:
        print(f"It can be added: bag add NAME {options.source}")
    raise SystemExit(1 if report.problems else 0)
