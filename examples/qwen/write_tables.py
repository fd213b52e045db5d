"""Write the tables of this example from data/: python examples/qwen/write_tables.py

Run it in the root of the repository, after `make example-digits`. After `make example` alone,
digit_circuits and digit_claims stay as they are. Numbers have six significant digits.
"""

from pathlib import Path

from polars import selectors

from stages.lib.sql.database import connect

FOLDER = Path(__file__).parent / "tables"
DIGITS = 6  # significant ones
OWN = "select * from {table} where subject = $subject"
WHOLE = f"{OWN} order by all"
TABLES = dict.fromkeys(
    (
        "accuracy",
        "architecture",
        "attention_sources",
        "bag_alone",
        "cut_faithfulness",
        "faithfulness",
        "knockout_tests",
        "knockouts_by_prompt",
        "label_limits",
        "label_votes",
        "late_layers",
        "probes",
        "smallest_circuits",
        "theories",
        "vote_agreement",
    ),
    WHOLE,
) | {
    "attribution_recall": f"{OWN} and layer is null order by all",
    "circuit_heads": """
        select * from circuit_heads where subject = $subject and reached order by operator, rank
    """,
    "claims": """
        select claim, operator, published, measured, ci_low, ci_high, verdict
        from claims where subject = $subject
        qualify bool_or(measured is not null or verdict <> 'not testable here')
            over (partition by claim)  -- the others measure nothing on this model
        order by claim, list_position(['add', 'subtract', 'multiply', 'divide'], operator)
    """,
    "classified_share": """
        select * from classified_share
        where subject = $subject and quantities = 'any' and threshold in (0.4, 0.6)
        order by all
    """,
    "digit_circuits": f"{OWN} and k = 50 order by all",
    "digit_claims": """
        select claim, operator, published, measured, ci_low, ci_high, verdict
        from study_claims where subject = $subject order by all
    """,
    "discovered_late": """
        select
            subject, operator,
            any_value((layers - first_layer) * neurons) as late_neurons,
            count(*) filter (discovered) as discovered,
            avg(explained) filter (discovered) as explained,
            avg(catalogue_explained) filter (discovered) as catalogue_explained,
            count(*) filter (discovered and atoms = 2) as conjunctions,
            avg(explained) filter (discovered and atoms = 2) as conjunctions_explained,
            avg(sum_explained) filter (discovered and atoms = 2) as conjunctions_sum_explained,
            avg(catalogue_explained) filter (discovered and atoms = 2)
                as conjunctions_catalogue_explained,
            sum(catalogue_gain) filter (discovered) / sum(gain) filter (discovered)
                as catalogue_gain_ratio
        from discovered
        join late_layers using (subject)
        join architecture using (subject, layers)
        where subject = $subject and layer >= first_layer
        group by subject, operator
        order by operator
    """,
    "discovered_neurons": """
        select
            subject, operator, rank, layer, neuron, predicate, discovered, explained,
            sum_explained, catalogue, catalogue_explained
        from discovered join neuron_variances using (subject, operator, layer, neuron)
        where subject = $subject and rank <= 24
        order by operator, rank
    """,
    "failure_controls": f"{OWN} and criterion = 'threshold' order by all",
    "failure_tests": f"{OWN} and criterion = 'threshold' order by all",
    "helix_fits": """
        select * from helix_fits
        where subject = $subject
            and case when numbers_below is null
                then layer in (1, 4, 8, 12, 16, 20, 22)
                    and (position = quantity or (position, quantity) = ('last', 'result'))
                else (position, quantity) = ('op1', 'op1')
                    and theory in ('helix', 'other_periods', 'pca')  -- for two claims
                end
        order by all
    """,
    "relative_importance": """
        select * exclude (floored, log_effects, negative) from relative_importance
        where subject = $subject and operator = 'all'
        order by which, task, condition
    """,
    "labels_by_layer": """
        select subject, operator, layer, quantity, kind, count(*) as neurons
        from labels where subject = $subject and rank = 1
        group by all order by all
    """,
    "mlp_effects_at_last": """
        select operator, layer, logit_effect, logit_ci_low, logit_ci_high, prompts
        from component_effects
        where subject = $subject and component = 'mlp' and position = 'last'
        order by all
    """,
    "mediation_effects": """
        select * from mediation_effects
        where subject = $subject and component in ('mlp', 'attention')
            and (task, condition, operator, which)
                = ('arithmetic', 'result_varies', 'all', 'all')
        order by all
    """,
    "neuron_overlap": """
        select * from neuron_overlap
        where subject = $subject
            and (ranking, sample, question) = ('effect', 'whole', 'arithmetic_words')
            and layer = (select max(layer) from neuron_overlap where subject = $subject)
        order by all
    """,
    "neuron_variances": """
        select * from neuron_variances where subject = $subject and rank <= 48
        order by operator, rank
    """,
    "steering": WHOLE,
}
LARGE = dict.fromkeys(("causal_votes", "helix_effects", "knockouts_by_heuristic"), WHOLE) | {
    "knockouts_by_neuron": """
        select operator, layer, neuron, heuristic, ablation, selectivity, null_neurons, p_value
        from knockouts_by_neuron where subject = $subject and ablation = 'zero' order by all
    """,
    "labels": WHOLE,
}


def main(subject: str = "qwen", folder: Path = FOLDER) -> None:
    database = connect("data")
    for name, query in (TABLES | LARGE).items():
        if name.startswith("digit_") and "digit_circuits" not in database.files:
            print(f"{name} is not made, and stays as it is")
            continue
        rows = database.sql(query.format(table=name), subject=subject).pl()
        rounded = rows.with_columns(selectors.float().round_sig_figs(DIGITS))
        if name in LARGE:
            rounded.write_parquet(folder / f"{name}.parquet")
        else:
            rounded.write_csv(folder / f"{name}.csv")


if __name__ == "__main__":
    main()
