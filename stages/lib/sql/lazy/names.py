"""Names the source of every column in a query's parse tree, with sqlglot.

sqlglot's rules are DuckDB's but for a few, which this module refuses or mends: what USING sees after
a comma, which column USING makes, and a CTE that has the name of a table.
"""

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from stages.lib.sql.lazy.keys import Ask


class NotUnderstoodError(sqlglot.errors.SqlglotError):
    """A query whose names may mean different things in different places."""


def qualified(tree: exp.Expr, ask: Ask) -> exp.Expr:
    """Return the tree with the source of every column named, and USING written as ON.

    ask: runs a query, None if it is wrong. Raises SqlglotError where it cannot.
    """
    ctes = [cte.alias.lower() for cte in tree.find_all(exp.CTE)]
    names = {table.name.lower() for table in tree.find_all(exp.Table)}
    answers = {name: ask(f"from {exp.to_identifier(name, quoted=True)} limit 0") for name in names}
    tables = {name: answer.column_names for name, answer in answers.items() if answer is not None}
    recursive = any(node.args.get("recursive") for node in tree.find_all(exp.With))
    unique = len({*ctes, *tables}) == len(ctes) + len(tables) and not recursive
    if not isinstance(tree, exp.Query) or not unique:
        raise NotUnderstoodError
    merging = _merging_joins(tree)
    tree = qualify(
        tree,
        dialect="duckdb",
        schema={name: dict.fromkeys(columns, "int") for name, columns in tables.items()},
        expand_alias_refs=False,
        validate_qualify_columns=False,
        quote_identifiers=False,
        identify=False,
    )
    for join in merging:  # sqlglot writes coalesce(a.x, b.x) for what is a.x in an inner join
        on = join.args.get("on")  # none where NATURAL found no columns
        for merged in list(on.find_all(exp.Coalesce)) if on else []:
            merged.replace(merged.this)
    return tree


def _merging_joins(tree: exp.Expr) -> list[exp.Join]:
    """Gather the joins of each SELECT in one place, and return those by USING and NATURAL.

    Raises NotUnderstoodError where sqlglot would take another column than DuckDB: after a comma,
    which hides the sources before it, and beside right and full joins, whose column it is.
    """
    merging = []
    for select in tree.find_all(exp.Select):
        joins = _joins(select)
        if joins:
            select.set("joins", joins)
            select.args["from_"].this.set("joins", None)
        by_name = [join for join in joins if join.args.get("using") or join.method == "NATURAL"]
        commas = any(not join.kind and len(join.args) == 1 for join in joins)
        if by_name and (commas or any(join.side in ("RIGHT", "FULL") for join in joins)):
            raise NotUnderstoodError
        merging += by_name
    return merging


def _joins(select: exp.Select) -> list[exp.Join]:
    """Return the joins of a SELECT; the parser keeps those of `from a join b` in a."""
    start = select.args.get("from_")
    inside = start.this.args.get("joins") if start else None
    return [*(inside or []), *(select.args.get("joins") or [])]
