"""Name the source of every column in a query's parse tree, with sqlglot.

sqlglot's rules differ from DuckDB's in a few cases, which this module refuses or corrects: what
USING sees after a comma, which column USING makes, and a CTE with the name of a table.
"""

import sqlglot
from sqlglot import exp
from sqlglot.optimizer.qualify import qualify

from stages.lib.sql.lazy.keys import Ask


class NotUnderstoodError(sqlglot.errors.SqlglotError):
    """A query whose names may mean different things in different places."""


def qualified(tree: exp.Expr, ask: Ask) -> exp.Expr:
    """Return the tree with the source of every column named, and USING written as ON.

    ask: runs a query, None if it is wrong. Raises SqlglotError if sqlglot may misread the names.
    """
    ctes = [cte.alias.lower() for cte in tree.find_all(exp.CTE)]
    schema: dict[str, object] = {}  # table -> column -> type, which does not matter
    for name in {table.name.lower() for table in tree.find_all(exp.Table)}:
        answer = ask(f"from {exp.to_identifier(name, quoted=True)} limit 0")
        if answer is not None:
            schema[name] = dict.fromkeys(answer.column_names, "int")
    is_recursive = any(node.args.get("recursive") for node in tree.find_all(exp.With))
    is_unique = len({*ctes, *schema}) == len(ctes) + len(schema)
    if not isinstance(tree, exp.Query) or is_recursive or not is_unique:
        raise NotUnderstoodError
    merging = _merging_joins(tree)
    tree = qualify(
        tree,
        dialect="duckdb",
        schema=schema,
        expand_alias_refs=False,
        validate_qualify_columns=False,
        quote_identifiers=False,
        identify=False,
    )
    for join in merging:
        # sqlglot writes coalesce(a.x, b.x) for what is a.x in an inner join
        condition = join.args.get("on")  # None if NATURAL found no columns
        if condition:
            for merged in list(condition.find_all(exp.Coalesce)):
                merged.replace(merged.this)
    return tree


def _merging_joins(tree: exp.Expr) -> list[exp.Join]:
    """Gather the joins of each SELECT in one place, and return those by USING and NATURAL.

    Raises NotUnderstoodError if sqlglot would take another column than DuckDB: after a comma, which
    hides the sources before it, and beside right and full joins, whose column it is.
    """
    merging = []
    for select in tree.find_all(exp.Select):
        joins = _joins(select)
        if joins:
            select.set("joins", joins)
            select.args["from_"].this.set("joins", None)
        by_name = [join for join in joins if join.args.get("using") or join.method == "NATURAL"]
        if by_name and any(map(_changes_names, joins)):
            raise NotUnderstoodError
        merging += by_name
    return merging


def _changes_names(join: exp.Join) -> bool:
    """Return whether a join is a comma, a right or a full join."""
    is_comma = not join.kind and len(join.args) == 1
    return is_comma or join.side in ("RIGHT", "FULL")


def _joins(select: exp.Select) -> list[exp.Join]:
    """Return the joins of a SELECT; the parser keeps those of `from a join b` in a."""
    joins = list(select.args.get("joins") or [])
    start = select.args.get("from_")
    if start:
        joins = [*(start.this.args.get("joins") or []), *joins]
    return joins
