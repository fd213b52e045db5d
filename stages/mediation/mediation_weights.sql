-- Bootstrap of causal mediation: how often each replicate draws each pair, from the pairs of its own template and operator.
-- Templates and operators are chosen, not sampled, and each has its fixed share of the pairs: a new study would draw other operands for
-- the same ones. Drawing them again too would add their differences to every interval, and lose classes of positions that few have.
-- Of a template and operator with one pair, that pair is always drawn.
--
-- subject    VARCHAR  the model
-- task       VARCHAR  whose pairs
-- condition  VARCHAR  whose pairs
-- operator   VARCHAR  whose pairs; all: those of every operator, and of tasks without operators
-- replicate  INTEGER  number of the replicate, from 0
-- weights    FLOAT[]  how often each of these pairs was drawn, in order of pair; they sum to the number of pairs
with
    replicates as (select unnest(range($mediation_replicates)) as replicate),
    strata as (
        select task, condition, template, operator, list(pair order by pair) as members
        from mediation_pairs group by task, condition, template, operator
    ),
    draws as (
        select
            replicate,
            lot($resampling_seed, task, condition, template, operator, replicate, turn) as drawn,
            members[1 + (drawn % len(members))::bigint] as pair
        from strata, replicates, unnest(range(len(members))) as turns(turn)
    ),
    counts as (select replicate, pair, count(*) as weight from draws group by replicate, pair)
select
    $subject as subject, task, condition, operator, replicate::integer as replicate,
    list(coalesce(weight, 0)::float order by pair) as weights
from grouped_pairs()
cross join replicates
left join counts using (replicate, pair)
group by task, condition, operator, replicate
order by task, condition, operator, replicate
